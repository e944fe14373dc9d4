// SPDX-License-Identifier: Apache-2.0
#include "optim/lion.hpp"

#include "kernels/lion_update.hpp"
#include "optim/one_state.hpp"
#include "optim/registry.hpp"

namespace optim {

void LionOptions::bind(config::Table& t) {
  t.key("b1", b1, "weight of the past in the direction").min(0).max(1);
  t.key("b2", b2, "weight of the past in the stored mean of gradients").min(0).max(1);
  t.choice("momentum_type", momentum_type,
           {{"f32", device::DType::f32}, {"bf16", device::DType::bf16}},
           "how the mean of gradients is stored")
      .on_resume(config::OnResume::never);
  if (b1 == 1 || b2 == 1)
    t.error(b1 == 1 ? "b1" : "b2", "1 would ignore all gradients; give less than 1");
}

namespace {

class Lion : public OneState<kernels::LionUpdate> {
 public:
  Lion(const shard::Fabric& fabric, const Chosen& chosen, const LionOptions& options)
      : OneState(fabric, chosen, options.momentum_type, "lion/mu") {
    args_.keep1 = float(options.b1);
    args_.add1 = float(1.0 - options.b1);
    args_.keep2 = state_coefficient(options.b2, options.momentum_type);
    args_.add2 = float(1.0 - options.b2);
  }

  void update(const Piece& piece, const kernels::Update& update) override {
    args_.update = update;
    args_.mu = state_.of(piece);
    updates_.add(args_);
  }

 private:
  kernels::LionUpdate args_;
};

}  // namespace

std::unique_ptr<Method> LionOptions::make(const shard::Fabric& fabric, const Chosen& chosen) const {
  return std::make_unique<Lion>(fabric, chosen, *this);
}

MethodRow lion_row() {
  return {"lion", "the sign of a mean of gradients, one state per element",
          [] { return std::shared_ptr<MethodOptions>(std::make_shared<LionOptions>()); }};
}

}  // namespace optim
