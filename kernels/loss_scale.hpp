// fp16's dynamic loss scale. Gradients are formed times a scale, so that small ones do not vanish in 16 bits; where one
// of them overflows the update is left out and the scale shrinks. Decided where the gradients are; a norm that is not
// finite, which all ranks share, says that something overflowed somewhere.
#pragma once

#include <cmath>

#include "kernels/dispatch.hpp"

namespace kernels {

struct LossScaleRule {
  float growth = 2, backoff = 0.5f;  // what the scale is multiplied with
  float least = 1;                   // it does not shrink below this
  int64_t growth_interval = 2000;    // updates without an overflow before it grows
};

// After op clip_gradient with bound 0, whose norm and decision are of the gradients times the scale. norm /= scale;
// decision's divisor and factor clip by `bound` (as clip_gradient does) and take the scale away. Then the scale moves:
// it shrinks if the norm was not finite, and grows after `growth_interval` updates in a row.
struct LossScale {
  static constexpr Op op = Op::loss_scale;
  View decision;  // f32 [3]: see Clip
  View norm;      // f64 [1]
  View state;     // f32 [3]: scale, updates since it moved, the scale that these gradients had (out)
  float bound = 0;
  LossScaleRule rule{};
};

// The op's arithmetic, of both back ends.
constexpr void step_loss_scale(float* decision, double* norm, float* state, float bound, const LossScaleRule& rule) {
  constexpr float kMost = 0x1p100f;  // of gradients that are all zero it would grow without end
  const float scale = state[0];
  const bool overflow = !(*norm < double(INFINITY));
  *norm /= double(scale);
  const bool clipped = bound > 0 && !(float(*norm) < bound);
  decision[0] = (clipped ? float(*norm) : 1) * scale, decision[1] = clipped ? bound : 1;
  state[2] = scale;
  if (overflow) {
    const float smaller = scale * rule.backoff;
    state[0] = smaller > rule.least ? smaller : rule.least, state[1] = 0;
  } else if (decision[2] != 0) {
    state[1] += 1;
    if (state[1] < float(rule.growth_interval)) return;
    const float larger = scale * rule.growth;
    state[0] = larger < kMost ? larger : kMost, state[1] = 0;
  }
}

}  // namespace kernels
