// SPDX-License-Identifier: Apache-2.0
// The decision how a step's gradients are clipped, and if they are applied at all. It is made from
// their sums of squares, on the device that holds them.
#pragma once

#include "kernels/apply_update.hpp"

namespace kernels {

// norm = sqrt of the sum of squares[places[i]], added in order in double. decision = divisor,
// factor, apply (see Clip). Divisor and factor are norm and bound if bound > 0 and not norm < bound
// (in float, as optax compares), else 1 and 1. apply = 1 if the norm and all of `must_be_finite`
// are finite.
struct ClipGradient {
  static constexpr Op op = Op::clip_gradient;
  View decision;          // f32 [3]
  View norm;              // f64 [1]
  View squares;           // f64 [any]
  View places;            // i32 [any], each within squares
  View must_be_finite{};  // optional f64 [any]: the loss
  View found{};           // optional f64, as places: squares[places[i]]
  float bound = 0;
};

}  // namespace kernels
