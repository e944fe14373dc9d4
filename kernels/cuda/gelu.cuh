// SPDX-License-Identifier: Apache-2.0
// GELU of one element and its derivative on the GPU, by the formulas of cpu/vector_rows.hpp. The
// fast exponential and division let bf16 tensors pass at the speed of memory. They are wrong by a
// few units in the last place; where the exponential is large, the result is small.
#pragma once

#include "device/cuda.hpp"

namespace kernels {

constexpr float kGeluMinus2U1 = -1.5957691216057308f;  // -2 sqrt(2/pi)
constexpr float kGeluMinus2U3 = kGeluMinus2U1 * 0.044715f;

__device__ inline float gelu_power(float x) {
  return __expf(x * fmaf(kGeluMinus2U3, x * x, kGeluMinus2U1));
}

__device__ inline float gelu_of(float x) { return __fdividef(x, 1.0f + gelu_power(x)); }

__device__ inline float gelu_gradient_of(float x) {
  const float power = gelu_power(x), s = __fdividef(1.0f, 1.0f + power);
  // For large |x|, s is exactly 0 or 1. The bounds keep its derivative 0 there, not 0 * infinity.
  // NaN passes through s.
  const float slope = s * s * fminf(1e30f, power), near = fmaxf(-32.0f, fminf(32.0f, x));
  const float minus_2du = fmaf(3 * kGeluMinus2U3, near * near, kGeluMinus2U1);
  return s - near * minus_2du * slope;
}

}  // namespace kernels
