// SPDX-License-Identifier: Apache-2.0
#include "optim/rmsprop.hpp"

#include "kernels/adamw_update.hpp"
#include "optim/element_state.hpp"
#include "optim/registry.hpp"

namespace optim {

void RmspropOptions::bind(config::Table& t) {
  t.key("alpha", alpha, "weight of the past in the mean of squared gradients").min(0).max(1);
  t.key("eps", eps, "added to the root").min(0);
  t.key("momentum", momentum, "share of the momentum that each update keeps; 0 = no state")
      .min(0)
      .max(1)
      .on_resume(config::OnResume::never);
  t.key("centered", centered,
        "divide by the root of the gradient's variance: its mean is taken off, one state more")
      .on_resume(config::OnResume::never);
  if (alpha == 1) t.error("alpha", "1 would ignore all gradients; give less than 1");
  if (momentum == 1) t.error("momentum", "1 would keep every update forever; give less than 1");
}

namespace {

class Rmsprop : public Method {
 public:
  Rmsprop(const shard::Fabric& fabric, const Chosen& chosen, const RmspropOptions& options)
      : Method(fabric, chosen), square_(make_state()), options_(options) {
    if (options.momentum > 0) buffer_ = make_state();
    if (options.centered) mean_ = make_state();
    args_.divides_first = true;
    args_.keep1 = float(options.momentum);
    args_.keep2 = float(options.alpha);
    args_.add2 = float(1.0 - options.alpha);
    args_.eps = float(options.eps);
  }

  void update(const Piece& piece, const kernels::Update& update) override {
    args_.update = update;
    args_.nu = square_.of(piece);
    if (options_.momentum > 0) args_.mu = buffer_.of(piece);
    if (options_.centered) args_.centre = mean_.of(piece);
    updates_.add(args_);
  }
  void run() override {
    Method::run();
    updates_.run(fabric_.queue);
  }

  void list_state(std::vector<shard::TensorSlice>& out) override {
    for (int p = 0; p < int(fabric_.layout.parameters().size()); ++p) {
      if (!chosen(p)) continue;
      square_.list("/optimizer/rmsprop/square_avg", p, out);
      if (options_.momentum > 0) buffer_.list("/optimizer/rmsprop/momentum_buffer", p, out);
      if (options_.centered) mean_.list("/optimizer/rmsprop/grad_avg", p, out);
    }
  }

 private:
  ElementState make_state() const {
    return ElementState(fabric_, device::DType::f32, [this](int p) { return this->chosen(p); });
  }

  ElementState square_, buffer_, mean_;
  RmspropOptions options_;
  kernels::AdamwUpdate args_;
  kernels::OpList<kernels::AdamwUpdate> updates_;
};

}  // namespace

std::unique_ptr<Method> RmspropOptions::make(const shard::Fabric& fabric,
                                             const Chosen& chosen) const {
  return std::make_unique<Rmsprop>(fabric, chosen, *this);
}

MethodRow rmsprop_row() {
  return {"rmsprop", "the gradient over the root of a mean of its squares, as PyTorch's RMSprop",
          [] { return std::shared_ptr<MethodOptions>(std::make_shared<RmspropOptions>()); }};
}

}  // namespace optim
