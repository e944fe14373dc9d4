// SPDX-License-Identifier: Apache-2.0
#include "optim/ema.hpp"

#include <algorithm>

#include "shard/tensor_roots.hpp"

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
  if (decay == 1) t.error("decay", "1 would ignore all weights of the run; give less than 1");
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

SecondWeights::Options ema_options(const EmaRule& rule) {
  return {.root = shard::kAverageRoot,
          .keep = [rule](int64_t step) -> std::optional<float> {
            if (!rule.due(step)) return {};
            return rule.keep(step);
          },
          .owns = [](const shard::Unit& unit) { return unit.trained(); }};
}

}  // namespace optim
