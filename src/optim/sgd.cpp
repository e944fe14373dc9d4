// SPDX-License-Identifier: Apache-2.0
#include "optim/sgd.hpp"

#include "kernels/momentum_update.hpp"
#include "optim/one_state.hpp"
#include "optim/registry.hpp"

namespace optim {

void SgdOptions::bind(config::Table& t) {
  t.key("momentum", momentum, "share of the momentum that each update keeps; 0 = no state")
      .min(0)
      .max(1);
  t.key("dampening", dampening,
        "share of the gradient that is not added to the momentum; the first update adds all")
      .min(0)
      .max(1);
  t.key("nesterov", nesterov, "look one step ahead along the momentum");
  if (nesterov && (momentum == 0 || dampening != 0))
    t.error("nesterov", "needs momentum above 0 and dampening 0");
}

namespace {

class Sgd : public Method {
 public:
  Sgd(const shard::Fabric& fabric, const Chosen& chosen) : Method(fabric, chosen) {}
  void update(const Piece&, const kernels::Update& update) override { updates_.add({update}); }
  void run() override {
    Method::run();
    updates_.run(fabric_.queue);
  }
  void list_state(std::vector<shard::TensorSlice>&) override {}

 private:
  kernels::OpList<kernels::ApplyUpdate> updates_;
};

// The first gradient of a tensor is its first momentum, undampened.
class SgdWithMomentum : public OneState<kernels::MomentumUpdate> {
 public:
  SgdWithMomentum(const shard::Fabric& fabric, const Chosen& chosen, const SgdOptions& options)
      : OneState(fabric, chosen, device::DType::f32, "sgd/trace"), options_(options) {}

  void begin_step(const StepInfo& info, const TensorTotals&) override { info_ = info; }
  void update(const Piece& piece, const kernels::Update& update) override {
    const bool first = info_.of(piece.parameter).updates == 1;
    updates_.add({.update = update,
                  .trace = state_.of(piece),
                  .keep = first ? 0 : float(options_.momentum),
                  .momentum = float(options_.momentum),
                  .nesterov = options_.nesterov,
                  .add = first ? 1 : float(1 - options_.dampening)});
  }

 private:
  SgdOptions options_;
  StepInfo info_;
};

}  // namespace

std::unique_ptr<Method> SgdOptions::make(const shard::Fabric& fabric, const Chosen& chosen) const {
  if (momentum > 0) return std::make_unique<SgdWithMomentum>(fabric, chosen, *this);
  return std::make_unique<Sgd>(fabric, chosen);
}

MethodRow sgd_row() {
  return {"sgd", "gradient descent as PyTorch's SGD: plain, or with f32 momentum",
          [] { return std::shared_ptr<MethodOptions>(std::make_shared<SgdOptions>()); }};
}

}  // namespace optim
