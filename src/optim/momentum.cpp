// SPDX-License-Identifier: Apache-2.0
#include "optim/momentum.hpp"

#include "kernels/momentum_update.hpp"
#include "optim/element_state.hpp"
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

class Momentum : public Method {
 public:
  Momentum(const shard::Fabric& fabric, const MomentumOptions& options)
      : Method(fabric), trace_(fabric, options.momentum_type, [](int) { return true; }) {
    args_.keep = state_coefficient(options.momentum, options.momentum_type);
    args_.momentum = float(options.momentum);
    args_.nesterov = options.nesterov;
  }

  void update(const Piece& piece, const kernels::Update& update) override {
    args_.update = update;
    args_.trace = trace_.of(piece);
    updates_.add(args_);
  }
  void run() override {
    Method::run();
    updates_.run(fabric_.queue);
  }

  void list_state(std::vector<shard::TensorSlice>& out) override {
    for (int p = 0; p < int(fabric_.layout.parameters().size()); ++p)
      if (trainable(p)) trace_.list("/optimizer/momentum/trace", p, out);
  }

 private:
  ElementState trace_;
  kernels::MomentumUpdate args_;
  kernels::OpList<kernels::MomentumUpdate> updates_;
};

}  // namespace

std::unique_ptr<Method> MomentumOptions::make(const shard::Fabric& fabric) const {
  return std::make_unique<Momentum>(fabric, *this);
}

MethodRow momentum_row() {
  return {"momentum", "gradient descent with momentum, bfloat16 trace",
          [] { return std::shared_ptr<MethodOptions>(std::make_shared<MomentumOptions>()); }};
}

}  // namespace optim
