// SPDX-License-Identifier: Apache-2.0
// Adafactor as big_vision runs it. It scales gradients by factored second moments, without bias
// correction and parameter scale. Clipping of updates is off by default. Momentum comes last.
//
// A factored tensor is seen as [outer, x, middle, y, inner]. x and y are its two largest
// dimensions, in memory order. A heads kernel [768, 12, 64] is [1, 768, 12, 64, 1], so heads are a
// batch axis.
//   over_x: sums over x, one per (outer, middle, y, inner)
//   over_y: sums over y, one per (outer, x, middle, inner)
// A rank that holds only elements [begin, begin + count) of the tensor forms partial sums. The
// partial sums of all ranks are added later.
#pragma once

#include "kernels/apply_update.hpp"

namespace kernels {

struct Factored {
  int64_t outer = 1, x = 0, middle = 1, y = 0, inner = 1;
  // True if x is the largest dimension, else y is. The factor that comes from sums over the largest
  // dimension is normalised by its mean.
  bool x_is_largest = false;

  int64_t count() const { return outer * x * middle * y * inner; }
  int64_t over_x() const { return outer * middle * y * inner; }
  int64_t over_y() const { return outer * x * middle * inner; }
};

// Sums the squares of g, which holds elements [begin, begin + count) of the tensor. total is
// overwritten; over_x and over_y are added to.
struct AdafactorSums {
  static constexpr Op op = Op::adafactor_sums;
  View total;           // f64 [1]
  View over_x, over_y;  // f64
  View g;               // f32 [count]
  int64_t begin = 0;
  Factored shape;
};
size_t cuda_scratch(const AdafactorSums&);

// Updates both moments from the sums, and forms the factors. R is the moment of the sums over the
// largest dimension, C the other one; `size` is the number of squares in each sum.
//   R = beta2 R + (1 - beta2) (scale * sum / size + eps), and C likewise
//   factors: (R / mean of R)^-1/2 and C^-1/2
struct AdafactorFactors {
  static constexpr Op op = Op::adafactor_factors;
  View v_over_x, v_over_y;            // f32 state, in place
  View factor_over_x, factor_over_y;  // f32, out
  View over_x, over_y;                // f64 sums of the raw gradient's squares
  Factored shape;
  Clip clip{};  // scale = (factor / divisor)^2
  float beta2 = 0, eps = 0;
};

// Scales a gradient g to A. For factored tensors A = g times both factors. For others, first
// v = beta2 v + (1 - beta2) (g^2 + eps), then A = g * v^-1/2.
struct AdafactorScaling {
  View v{};                               // unfactored: f32 [count], in place
  View factor_over_x{}, factor_over_y{};  // factored: f32, of the whole tensor
  Factored shape{};
  int64_t begin = 0;  // first element of the view within the tensor
  float beta2 = 0, eps = 0;
};

// Update clipping: A is divided by max(1, RMS of A over the tensor / threshold).
struct RmsClip {
  View square{};  // optional f64 [1]: the tensor's sum of A^2; without it A is not clipped
  int64_t elements = 0;
  float threshold = 1;
};

// The direction is d = add * A / rms + keep * M; then M = d, rounded to M's type. Without momentum
// d = A / rms. AdafactorScaling defines A, and rms is the divisor of RmsClip.
struct AdafactorUpdate {
  static constexpr Op op = Op::adafactor_update;
  Update update;
  AdafactorScaling scaling;
  View momentum{};  // optional M: f32 or bf16 [count]
  float keep = 0, add = 1;
  RmsClip rms{};
};
size_t cuda_scratch(const AdafactorUpdate&);

// First pass of update clipping: sum = sum of A^2. It also updates v. The AdafactorUpdate that
// follows gets beta2 = 1, which leaves v unchanged.
struct AdafactorRms {
  static constexpr Op op = Op::adafactor_rms;
  View sum;       // f64 [1]
  View gradient;  // f32 [count]
  Clip clip{};
  AdafactorScaling scaling;
};
size_t cuda_scratch(const AdafactorRms&);

inline void check(const AdafactorSums& a) {
  CHECK(a.total.type == DType::f64 && a.total.count == 1);
  CHECK(a.over_x.type == DType::f64 && a.over_x.count == a.shape.over_x());
  CHECK(a.over_y.type == DType::f64 && a.over_y.count == a.shape.over_y());
  CHECK(a.g.type == DType::f32 && a.begin >= 0 && a.begin + a.g.count <= a.shape.count());
}

inline Cost cost(const AdafactorSums& a) { return {3 * a.g.count, a.g.bytes()}; }

inline void check(const AdafactorFactors& a) {
  check(a.clip);
  const int64_t nx = a.shape.over_x(), ny = a.shape.over_y();
  CHECK(a.over_x.type == DType::f64 && a.over_y.type == DType::f64 && a.over_x.count == nx &&
        a.over_y.count == ny);
  for (const View& v : {a.v_over_x, a.factor_over_x}) CHECK(v.type == DType::f32 && v.count == nx);
  for (const View& v : {a.v_over_y, a.factor_over_y}) CHECK(v.type == DType::f32 && v.count == ny);
}

inline Cost cost(const AdafactorFactors& a) {
  const int64_t n = a.shape.over_x() + a.shape.over_y();
  return {8 * n, 20 * n};
}

inline void check(const AdafactorScaling& a, int64_t count) {
  if (!a.v.none()) {
    CHECK(a.v.type == DType::f32 && a.v.count == count);
    return;
  }
  CHECK(a.factor_over_x.type == DType::f32 && a.factor_over_x.count == a.shape.over_x());
  CHECK(a.factor_over_y.type == DType::f32 && a.factor_over_y.count == a.shape.over_y());
  CHECK(a.begin >= 0 && a.begin + count <= a.shape.count());
}

inline void check(const AdafactorUpdate& a) {
  check(a.update);
  check(a.scaling, a.update.count());
  CHECK(a.momentum.none() || a.momentum.type == DType::f32 || a.momentum.type == DType::bf16);
  CHECK(a.momentum.none() || a.momentum.count == a.update.count());
  CHECK(a.rms.square.none() || (a.rms.square.type == DType::f64 && a.rms.square.count == 1));
  CHECK(a.rms.square.none() || (a.rms.elements >= a.update.count() && a.rms.threshold > 0));
}

inline Cost cost(const AdafactorUpdate& a) {
  const int64_t n = a.update.count();
  const bool element = !a.scaling.v.none();
  return {(element ? 13 : 10) * n, 12 * n + (element ? 8 * n : 0) + 2 * a.momentum.bytes()};
}

inline void check(const AdafactorRms& a) {
  CHECK(a.sum.type == DType::f64 && a.sum.count == 1);
  CHECK(a.gradient.type == DType::f32);
  check(a.clip);
  check(a.scaling, a.gradient.count);
}

inline Cost cost(const AdafactorRms& a) {
  return {6 * a.gradient.count, (a.scaling.v.none() ? 4 : 12) * a.gradient.count};
}

}  // namespace kernels
