// SPDX-License-Identifier: Apache-2.0
#include "optim/adamw.hpp"

#include "base/elementary.hpp"
#include "kernels/adamw_update.hpp"
#include "optim/element_state.hpp"
#include "optim/registry.hpp"

namespace optim {

void AdamwOptions::bind(config::Table& t) {
  t.key("b1", b1, "weight of the past in the mean of gradients").min(0).max(1);
  t.key("b2", b2, "weight of the past in the mean of squared gradients").min(0).max(1);
  t.key("eps", eps, "added to the root").min(0);
  t.key("eps_root", eps_root, "added under the root").min(0);
  t.choice("momentum_type", momentum_type,
           {{"f32", device::DType::f32}, {"bf16", device::DType::bf16}},
           "how the mean of gradients is stored")
      .on_resume(config::OnResume::never);
  t.key("amsgrad", amsgrad, "divide by the largest mean of squared gradients so far")
      .on_resume(config::OnResume::never);
  t.choice("correction", exact_correction, {{"f32", false}, {"f64", true}},
           "precision of 1 - b^step: f32 as optax, f64 as PyTorch");
  if (b1 == 1 || b2 == 1)
    t.error(b1 == 1 ? "b1" : "b2", "1 would ignore all gradients; give less than 1");
}

float bias_correction(double b, int64_t step, bool exact) {
  if (exact) return float(1 - base::math::pow(b, double(step)));
  return 1.0f - float(base::math::pow(double(float(b)), double(step)));
}

namespace {

class Adamw : public Method {
 public:
  Adamw(const shard::Fabric& fabric, const Chosen& chosen, const AdamwOptions& options)
      : Method(fabric, chosen),
        mu_(fabric, options.momentum_type, [this](int p) { return this->chosen(p); }),
        nu_(fabric, device::DType::f32, [this](int p) { return this->chosen(p); }),
        options_(options) {
    if (options.amsgrad)
      nu_max_ = ElementState(fabric, device::DType::f32, [this](int p) { return this->chosen(p); });
    args_.keep1 = state_coefficient(options.b1, options.momentum_type);
    args_.add1 = float(1.0 - options.b1);
    args_.keep2 = float(options.b2);
    args_.add2 = float(1.0 - options.b2);
    args_.eps = float(options.eps);
    args_.eps_root = float(options.eps_root);
  }

  void begin_step(const StepInfo& info, const TensorTotals&) override { info_ = info; }

  void update(const Piece& piece, const kernels::Update& update) override {
    args_.update = update;
    args_.mu = mu_.of(piece);
    args_.nu = nu_.of(piece);
    if (options_.amsgrad) args_.nu_max = nu_max_.of(piece);
    if (const int64_t updates = info_.of(piece.parameter).updates; updates != corrected_) {
      corrected_ = updates;
      args_.correction1 = bias_correction(options_.b1, updates, options_.exact_correction);
      args_.correction2 = bias_correction(options_.b2, updates, options_.exact_correction);
    }
    updates_.add(args_);
  }
  void run() override {
    Method::run();
    updates_.run(fabric_.queue);
  }

  void list_state(std::vector<shard::TensorSlice>& out) override {
    for (int p = 0; p < int(fabric_.layout.parameters().size()); ++p) {
      if (!chosen(p)) continue;
      mu_.list("/optimizer/adamw/mu", p, out);
      nu_.list("/optimizer/adamw/nu", p, out);
      if (options_.amsgrad) nu_max_.list("/optimizer/adamw/nu_max", p, out);
    }
  }

 private:
  ElementState mu_, nu_, nu_max_;
  AdamwOptions options_;
  StepInfo info_;
  int64_t corrected_ = 0;  // the number of updates that args_ corrects for
  kernels::AdamwUpdate args_;
  kernels::OpList<kernels::AdamwUpdate> updates_;
};

}  // namespace

std::unique_ptr<Method> AdamwOptions::make(const shard::Fabric& fabric,
                                           const Chosen& chosen) const {
  return std::make_unique<Adamw>(fabric, chosen, *this);
}

MethodRow adamw_row() {
  return {"adamw", "Adam with decoupled weight decay",
          [] { return std::shared_ptr<MethodOptions>(std::make_shared<AdamwOptions>()); }};
}

}  // namespace optim
