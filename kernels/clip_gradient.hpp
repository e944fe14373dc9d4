// SPDX-License-Identifier: Apache-2.0
// Decides how a step's gradients are clipped, and if they are applied at all, from their sums of
// squares. The device that holds the gradients decides, so the host need not wait for it.
#pragma once

#include "kernels/apply_update.hpp"
#include "kernels/check_views.hpp"

namespace kernels {

// norm = sqrt of the sum of squares[places[i]], added in order in double. decision = divisor,
// factor, apply (see Clip). The size of the gradient is the norm, or the largest of `largest`. If
// bound > 0 and the size is not below bound, divisor and factor are size and bound, else 1 and 1.
// The comparison is in float, as in optax. apply is 1 if the norm and all of `must_be_finite` are
// finite and the size is below `drop`, if that is above 0; else 0.
struct ClipGradient {
  static constexpr Op op = Op::clip_gradient;
  View decision;          // f32 [3]
  View norm;              // f64 [1]
  View squares;           // f64 [any]
  View places;            // i32 [any]: indices into squares
  View must_be_finite{};  // optional f64 [any]: the loss
  View found{};           // optional f64, as many as places: squares[places[i]]
  View largest{};         // optional f64 [any]: the infinity norms of tensors
  float bound = 0, drop = 0;
};

// Returns the memory of an optional view.
inline const double* numbers_of(const View& v) { return v.none() ? nullptr : v.f64(); }

// Returns the size of a gradient; both back ends call it.
constexpr double size_of_gradient(double norm, const double* largest, int64_t count) {
  if (count == 0) return norm;
  double size = 0;
  for (int64_t i = 0; i < count; ++i) size = largest[i] > size ? largest[i] : size;
  return size;
}

inline void check(const ClipGradient& a) {
  need_view(a.op, "decision", a.decision, DType::f32, {3});
  need_view(a.op, "norm", a.norm, DType::f64, {1});
  need_view(a.op, "squares", a.squares, DType::f64, {a.squares.count});
  need_view(a.op, "places", a.places, DType::i32, {a.places.count});
  allow_view(a.op, "must_be_finite", a.must_be_finite, DType::f64, {a.must_be_finite.count});
  allow_view(a.op, "found", a.found, DType::f64, {a.places.count});
  allow_view(a.op, "largest", a.largest, DType::f64, {a.largest.count});
}

inline Cost cost(const ClipGradient& a) {
  return {a.places.count,
          12 * a.places.count + a.must_be_finite.bytes() + a.found.bytes() + a.largest.bytes()};
}

}  // namespace kernels
