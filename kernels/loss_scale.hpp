// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scale of fp16. Gradients are multiplied by a scale, so that small ones do not vanish
// in 16 bits. If one of them overflows, the update is skipped and the scale shrinks. The decision
// is made on the device that holds the gradients. All ranks share the norm; it is not finite after
// an overflow on any of them.
#pragma once

#include <cmath>

#include "kernels/check_views.hpp"
#include "kernels/clip_gradient.hpp"

namespace kernels {

struct LossScaleRule {
  float growth = 2, backoff = 0.5f;  // factors of the scale when it grows and when it shrinks
  float least = 1;                   // the scale does not shrink below this
  int64_t growth_interval = 2000;    // updates without an overflow before it grows
};

// Runs after op clip_gradient with bound and drop 0, whose norm and decision belong to gradients
// times the scale. norm /= scale; the decision clips by `bound` and drops from `drop` on, as
// clip_gradient does, and removes the scale. Then the scale shrinks if the norm was not finite, and
// grows after `growth_interval` consecutive updates.
struct LossScale {
  static constexpr Op op = Op::loss_scale;
  View decision;   // f32 [3]: see Clip
  View norm;       // f64 [1]
  View state;      // f32 [3]: scale, updates since it changed, the scale of these gradients (out)
  View largest{};  // optional f64 [any]: the infinity norms of gradients times the scale
  float bound = 0, drop = 0;
  LossScaleRule rule{};
};

// The numbers of the op, in the memory of its back end.
struct LossScaleNumbers {
  float* decision;
  double* norm;
  float* state;
  const double* largest;
  int64_t largest_count;
  float bound, drop;
  LossScaleRule rule;

  static LossScaleNumbers of(const LossScale& a) {
    return {a.decision.f32(), a.norm.f64(), a.state.f32(), numbers_of(a.largest),
            a.largest.count,  a.bound,      a.drop,        a.rule};
  }
};

// Updates decision, norm and state; both back ends call it.
constexpr void step_loss_scale(const LossScaleNumbers& a) {
  float *decision = a.decision, *state = a.state;
  double* norm = a.norm;
  const LossScaleRule& rule = a.rule;
  // Limits the scale: gradients that are all zero would let it grow without end.
  constexpr float kMost = 0x1p100f;
  const float scale = state[0];
  const bool overflow = !(*norm < double(INFINITY));
  const auto size = float(size_of_gradient(*norm, a.largest, a.largest_count) / double(scale));
  *norm /= double(scale);
  const bool clipped = a.bound > 0 && !(size < a.bound);
  decision[0] = (clipped ? size : 1) * scale;
  decision[1] = clipped ? a.bound : 1;
  if (a.drop > 0 && !(size < a.drop)) decision[2] = 0;
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

inline void check(const LossScale& a) {
  need_view(a.op, "decision", a.decision, DType::f32, {3});
  need_view(a.op, "norm", a.norm, DType::f64, {1});
  need_view(a.op, "state", a.state, DType::f32, {3});
  allow_view(a.op, "largest", a.largest, DType::f64, {a.largest.count});
}

inline Cost cost(const LossScale&) { return {8, 32}; }

}  // namespace kernels
