// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scale of fp16. Gradients are multiplied by a scale, so that small ones do not vanish
// in 16 bits. If one of them overflows, the update is skipped and the scale shrinks. The decision
// is made on the device that holds the gradients. All ranks share the norm; it is not finite after
// an overflow on any of them.
#pragma once

#include <cmath>

#include "kernels/dispatch.hpp"

namespace kernels {

struct LossScaleRule {
  float growth = 2, backoff = 0.5f;  // factors of the scale when it grows and when it shrinks
  float least = 1;                   // the scale does not shrink below this
  int64_t growth_interval = 2000;    // updates without an overflow before it grows
};

// Runs after op clip_gradient with bound 0, whose norm and decision belong to gradients times the
// scale. norm /= scale; the decision's divisor and factor clip by `bound`, as clip_gradient does,
// and remove the scale. Then the scale shrinks if the norm was not finite, and grows after
// `growth_interval` consecutive updates.
struct LossScale {
  static constexpr Op op = Op::loss_scale;
  View decision;  // f32 [3]: see Clip
  View norm;      // f64 [1]
  View state;     // f32 [3]: scale, updates since it changed, the scale of these gradients (out)
  float bound = 0;
  LossScaleRule rule{};
};

// Updates decision, norm and state; both back ends call it.
constexpr void step_loss_scale(float* decision, double* norm, float* state, float bound,
                               const LossScaleRule& rule) {
  // Limits the scale: gradients that are all zero would let it grow without end.
  constexpr float kMost = 0x1p100f;
  const float scale = state[0];
  const bool overflow = !(*norm < double(INFINITY));
  *norm /= double(scale);
  const bool clipped = bound > 0 && !(float(*norm) < bound);
  decision[0] = (clipped ? float(*norm) : 1) * scale;
  decision[1] = clipped ? bound : 1;
  state[2] = scale;
  if (overflow) {
    const float smaller = scale * rule.backoff;
    state[0] = smaller > rule.least ? smaller : rule.least;
    state[1] = 0;
  } else if (decision[2] != 0) {
    state[1] += 1;
    if (state[1] < float(rule.growth_interval)) return;
    const float larger = scale * rule.growth;
    state[0] = larger < kMost ? larger : kMost;
    state[1] = 0;
  }
}

}  // namespace kernels
