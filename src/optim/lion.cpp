// SPDX-License-Identifier: Apache-2.0
#include "optim/lion.hpp"

#include "kernels/lion_update.hpp"
#include "optim/element_state.hpp"
#include "optim/registry.hpp"

namespace optim {

void LionOptions::bind(config::Table& t) {
  t.key("b1", b1, "weight of the past in the direction").min(0).max(1);
  t.key("b2", b2, "weight of the past in the stored mean of gradients").min(0).max(1);
  t.choice("momentum_type", momentum_type,
           {{"f32", device::DType::f32}, {"bf16", device::DType::bf16}},
           "how the mean of gradients is stored")
      .on_resume(config::OnResume::never);
  if (b1 == 1 || b2 == 1) t.error(b1 == 1 ? "b1" : "b2", "1 would never let a gradient in");
}

namespace {

class Lion : public Method {
 public:
  Lion(const shard::Fabric& fabric, const LionOptions& options)
      : Method(fabric), mu_(fabric, options.momentum_type, [](int) { return true; }) {
    args_.keep1 = float(options.b1);
    args_.add1 = float(1.0 - options.b1);
    args_.keep2 = state_coefficient(options.b2, options.momentum_type);
    args_.add2 = float(1.0 - options.b2);
  }

  void update(const Piece& piece, const kernels::Update& update) override {
    args_.update = update;
    args_.mu = mu_.of(piece);
    updates_.add(args_);
  }
  void run() override {
    Method::run();
    updates_.run(fabric_.queue);
  }
  void list_state(std::vector<shard::TensorSlice>& out) override {
    for (int p = 0; p < int(fabric_.layout.parameters().size()); ++p)
      if (trainable(p)) mu_.list("/optimizer/lion/mu", p, out);
  }

 private:
  ElementState mu_;
  kernels::LionUpdate args_;
  kernels::OpList<kernels::LionUpdate> updates_;
};

}  // namespace

std::unique_ptr<Method> LionOptions::make(const shard::Fabric& fabric) const {
  return std::make_unique<Lion>(fabric, *this);
}

MethodRow lion_row() {
  return {"lion", "the sign of a mean of gradients, one state per element",
          [] { return std::shared_ptr<MethodOptions>(std::make_shared<LionOptions>()); }};
}

}  // namespace optim
