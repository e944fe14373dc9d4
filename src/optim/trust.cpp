// SPDX-License-Identifier: Apache-2.0
#include "optim/trust.hpp"

#include <utility>

namespace optim {

void TrustOptions::bind(config::Table& t) {
  t.choice(
      "rule", rule, {{"larc", kernels::Trust::larc}, {"lars", kernels::Trust::lars}},
      "larc: coefficient |w| / (|g| + decay |w| + eps); lars: coefficient |w| / |g + decay w|; "
      "a tensor with a zero norm moves with the whole rate");
  t.key("coefficient", coefficient, "times the ratio of norms (LARS calls it eta)").above(0);
  t.key("eps", eps, "larc: added to the divisor").min(0);
  t.key("clip", clip, "larc: the ratio only lowers the rate: min(ratio / rate, 1)");
  t.key("exclude_vectors", exclude_vectors,
        "tensors of one dimension (biases, norms) keep their gradients");
  if (rule == kernels::Trust::lars && clip)
    t.error("clip", "applies only to rule = \"larc\", and rule is \"lars\"; leave it out");
}

namespace {

class TrustMethod : public Method {
 public:
  TrustMethod(const shard::Fabric& fabric, const TrustOptions& options, std::vector<bool> scales,
              std::unique_ptr<Method> inner)
      : Method(fabric, scales),
        options_(options),
        scales_(std::move(scales)),
        inner_(std::move(inner)),
        numbers_(fabric.queue.kind(), fabric.ledger, "workspace",
                 2 * int64_t(scales_.size()) * size_of(device::DType::f32)) {
    for (int p = 0; p < int(scales_.size()); ++p)
      CHECK(inner_->measures(p) == 0, "the optimizer reads gradients before its update");
  }

  int64_t sums(int parameter) const override { return inner_->sums(parameter); }
  void sum(const Piece& piece, device::View gradient, device::View sums) override {
    inner_->sum(piece, gradient, sums);
  }
  void run() override {
    inner_->run();
    measures_.run(fabric_.queue);
  }
  void begin_step(const StepInfo& info, const TensorTotals& totals) override {
    info_ = info;
    inner_->begin_step(info, totals);
  }

  int64_t measures(int parameter) const override { return scales_[size_t(parameter)] ? 2 : 0; }
  void measure(const Piece& piece, device::View weights, device::View gradient,
               device::View sums) override {
    const bool lars = options_.rule == kernels::Trust::lars;
    measures_.add({.sums = sums,
                   .weights = weights,
                   .gradient = gradient,
                   .clip = info_.clip,
                   .decay = lars ? info_.of(piece.parameter).inner_decay : 0});
  }
  void measured(const TensorTotals& totals) override {
    for (int p = 0; p < int(scales_.size()); ++p) {
      const TensorStep& tensor = info_.of(p);
      if (!scales_[size_t(p)] || !tensor.updated()) continue;
      ratios_.add({.trust = trust(p),
                   .sums = totals.of(p),
                   .rule = options_.rule,
                   .coefficient = float(options_.coefficient),
                   .eps = float(options_.eps),
                   .decay = tensor.inner_decay,
                   .limit = options_.clip ? tensor.rate * tensor.schedule : 0});
    }
    ratios_.run(fabric_.queue);
  }

  void update(const Piece& piece, const kernels::Update& update) override {
    kernels::Update scaled = update;
    if (scales_[size_t(piece.parameter)]) scaled.inner.trust = trust(piece.parameter);
    inner_->update(piece, scaled);
  }
  void list_state(std::vector<shard::TensorSlice>& out) override { inner_->list_state(out); }

 private:
  device::View trust(int parameter) const {
    return numbers_.view(device::DType::f32).slice(2 * parameter, 2);
  }

  TrustOptions options_;
  std::vector<bool> scales_;  // by parameter
  std::unique_ptr<Method> inner_;
  device::Buffer numbers_;  // ratio and decay of each parameter
  StepInfo info_;
  kernels::OpList<kernels::TrustSums> measures_;
  kernels::OpList<kernels::TrustRatio> ratios_;
};

}  // namespace

std::unique_ptr<Method> make_trust(const shard::Fabric& fabric, const TrustOptions& options,
                                   const std::vector<bool>& scales, std::unique_ptr<Method> inner) {
  std::vector<bool> scaled = scales;
  const std::vector<shard::Parameter>& parameters = fabric.layout.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const bool trained = fabric.layout.units()[size_t(parameters[p].unit)].trained();
    const bool excluded = options.exclude_vectors && parameters[p].shape.size() <= 1;
    scaled[p] = scaled[p] && trained && !excluded;
  }
  return std::make_unique<TrustMethod>(fabric, options, std::move(scaled), std::move(inner));
}

}  // namespace optim
