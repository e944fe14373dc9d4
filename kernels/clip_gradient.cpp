// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of clip_gradient.
#include "kernels/clip_gradient.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const ClipGradient& a) {
  need_view(a.op, "decision", a.decision, DType::f32, {3});
  need_view(a.op, "norm", a.norm, DType::f64, {1});
  need_view(a.op, "squares", a.squares, DType::f64, {a.squares.count});
  need_view(a.op, "places", a.places, DType::i32, {a.places.count});
  allow_view(a.op, "must_be_finite", a.must_be_finite, DType::f64, {a.must_be_finite.count});
  allow_view(a.op, "found", a.found, DType::f64, {a.places.count});
  allow_view(a.op, "largest", a.largest, DType::f64, {a.largest.count});
}

Cost cost(const ClipGradient& a) {
  return {a.places.count,
          12 * a.places.count + a.must_be_finite.bytes() + a.found.bytes() + a.largest.bytes()};
}

}  // namespace kernels
