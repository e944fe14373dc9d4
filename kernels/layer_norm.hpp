// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last axis (cappa.md 1.3), with biased variance:
//   y = (x - mean) * (rstd * scale) + bias
// The variance is computed in two passes, because the published form E[x^2] - mean^2 cancels. The
// difference lies inside the tolerance of the golden cases.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct LayerNormForward {
  static constexpr Op op = Op::layer_norm_forward;
  View y;           // [rows, columns], f32, bf16 or f16
  View mean, rstd;  // [rows], saved for backward
  View x;           // [rows, columns]
  View scale;       // [columns]
  View bias{};      // optional [columns]
  int64_t rows = 0, columns = 0;
  float eps = 1e-6f;
};

struct LayerNormBackward {
  static constexpr Op op = Op::layer_norm_backward;
  // optional [rows, columns]; dx_write = accumulate adds to the gradient of the residual path
  View dx{};
  // optional [columns], overwritten or added to (param_write); `rows` alone fixes the order of sums
  View dscale{}, dbias{};
  View dy;          // [rows, columns], f32, bf16 or f16
  View x;           // [rows, columns]
  View mean, rstd;  // [rows]
  View scale;       // [columns]
  int64_t rows = 0, columns = 0;
  Write dx_write = Write::overwrite, param_write = Write::overwrite;
  // The layer before needs these two. No pass of its own computes them then. Both need dx.
  View rounded{};  // optional [rows, columns]: dx in bf16 or f16, the type of a narrow dy
  View sums{};     // optional [columns]: sums of dx over rows, overwritten
};
size_t cuda_scratch(const LayerNormBackward&);

}  // namespace kernels
