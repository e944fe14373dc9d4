// SPDX-License-Identifier: Apache-2.0
// Decides how a step's gradients are clipped, and if they are applied at all, from their sums of
// squares. The device that holds the gradients decides, so the host need not wait for it.
#pragma once

#include "kernels/apply_update.hpp"

namespace kernels {

// norm = sqrt of the sum of squares[places[i]], added in order in double. decision = divisor,
// factor, apply (see Clip). If bound > 0 and the norm is not below bound, divisor and factor are
// norm and bound, else 1 and 1. The comparison is in float, as in optax. apply is 1 if the norm and
// all of `must_be_finite` are finite, else 0.
struct ClipGradient {
  static constexpr Op op = Op::clip_gradient;
  View decision;          // f32 [3]
  View norm;              // f64 [1]
  View squares;           // f64 [any]
  View places;            // i32 [any]: indices into squares
  View must_be_finite{};  // optional f64 [any]: the loss
  View found{};           // optional f64, as many as places: squares[places[i]]
  float bound = 0;
};

}  // namespace kernels
