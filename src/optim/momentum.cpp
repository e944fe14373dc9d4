// SPDX-License-Identifier: Apache-2.0
#include "optim/momentum.hpp"

#include "kernels/momentum_update.hpp"
#include "optim/one_state.hpp"
#include "optim/registry.hpp"

namespace optim {

void MomentumOptions::bind(config::Table& t) {
  t.key("momentum", momentum, "share of the trace that each update keeps").min(0).max(1);
  t.choice("momentum_type", momentum_type,
           {{"bf16", device::DType::bf16}, {"f32", device::DType::f32}}, "how the trace is stored")
      .on_resume(config::OnResume::never);
  t.key("nesterov", nesterov, "look one step ahead along the trace");
}

namespace {

class Momentum : public OneState<kernels::MomentumUpdate> {
 public:
  Momentum(const shard::Fabric& fabric, const Chosen& chosen, const MomentumOptions& options)
      : OneState(fabric, chosen, options.momentum_type, "momentum/trace") {
    args_.keep = state_coefficient(options.momentum, options.momentum_type);
    args_.momentum = float(options.momentum);
    args_.nesterov = options.nesterov;
  }

  void update(const Piece& piece, const kernels::Update& update) override {
    args_.update = update;
    args_.trace = state_.of(piece);
    updates_.add(args_);
  }

 private:
  kernels::MomentumUpdate args_;
};

}  // namespace

std::unique_ptr<Method> MomentumOptions::make(const shard::Fabric& fabric,
                                              const Chosen& chosen) const {
  return std::make_unique<Momentum>(fabric, chosen, *this);
}

MethodRow momentum_row() {
  return {"momentum", "gradient descent with momentum, bfloat16 trace",
          [] { return std::shared_ptr<MethodOptions>(std::make_shared<MomentumOptions>()); }};
}

}  // namespace optim
