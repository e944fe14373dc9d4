// SPDX-License-Identifier: Apache-2.0
#include "optim/ema.hpp"

#include <algorithm>

#include "optim/element_state.hpp"

namespace optim {

void EmaOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("decay", decay,
        "how much of the average each update keeps: 0.9999 averages over some 10,000 steps")
      .above(0)
      .max(1)
      .on_resume(may);
  t.duration("warmup", warmup,
             "a short memory at first: the update of step s keeps at most (1 + s) / (warmup + s) "
             "of the average; 0 = off, 10 steps is a common choice")
      .min(0)
      .on_resume(may);
  t.duration("every", every,
             "time between updates of the average; each keeps the same share, so the average "
             "reaches further back with a longer time")
      .above(0)
      .on_resume(may);
  if (decay == 1) t.error("decay", "1 would never let a weight in");
}

EmaRule::EmaRule(const EmaOptions& options, const Clock& clock)
    : decay(options.decay),
      warmup(options.warmup.value == 0
                 ? 0
                 : options.warmup.steps(clock.global_batch, clock.data_size, clock.total_steps)),
      every(std::max<int64_t>(
          1, options.every.steps(clock.global_batch, clock.data_size, clock.total_steps))) {}

float EmaRule::keep(int64_t step) const {
  if (warmup == 0) return float(decay);
  return float(std::min(decay, double(1 + step) / double(warmup + step)));
}

Ema::Ema(shard::Fabric fabric, const EmaRule& rule, const shard::WeightStore& weights)
    : fabric_(fabric), rule_(rule), weights_(weights), average_(fabric, 0, &weights) {}

void Ema::start() {
  for (int u = 0; u < int(fabric_.layout.units().size()); ++u)
    if (fabric_.layout.units()[size_t(u)].trained())
      device::copy(average_.owned(u), weights_.owned(u), fabric_.queue);
  gathered_ = false;
}

void Ema::update(int64_t step, device::View decided) {
  if (!rule_.due(step)) return;
  for (int u = 0; u < int(fabric_.layout.units().size()); ++u)
    if (fabric_.layout.units()[size_t(u)].trained())
      updates_.add({.average = average_.owned(u),
                    .values = weights_.owned(u),
                    .decided = decided,
                    .keep = rule_.keep(step)});
  updates_.run(fabric_.queue);
  gathered_ = false;
}

shard::WeightStore& Ema::average() {
  if (!gathered_) average_.publish();
  gathered_ = true;
  return average_;
}

void Ema::list_state(std::vector<shard::TensorSlice>& out) const {
  const shard::Layout& layout = fabric_.layout;
  std::vector<size_t> at(layout.parameters().size());
  for (size_t p = 0; p < layout.parameters().size(); ++p) {
    const shard::Parameter& parameter = layout.parameters()[p];
    const shard::Unit& unit = layout.units()[size_t(parameter.unit)];
    if (!unit.trained()) continue;
    at[p] = out.size();
    out.push_back({"/ema/" + parameter.path,
                   device::DType::f32,
                   parameter.shape,
                   {},
                   writes_state(fabric_.mesh, unit.strategy.optimizer_sharded)});
  }
  for (int u = 0; u < int(layout.units().size()); ++u) {
    if (!layout.units()[size_t(u)].trained()) continue;
    const device::View owned = average_.owned(u);
    for (const shard::Segment& s :
         layout.segments(u, layout.owned_begin(u, fabric_.mesh.fsdp_index), owned.count))
      out[at[size_t(s.parameter)]].parts.push_back({s.begin, s.end, owned.f32() + s.offset});
  }
}

}  // namespace optim
