// SPDX-License-Identifier: Apache-2.0
// Rows divided by their Euclidean length (ssl.md 0), times one factor, and one more per row (weight
// norm of ssl.md 2).
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// A row shorter than this is divided by this instead.
constexpr float kLeastLength = 1e-12f;

// y[r] = scale * row_scale[r] * x[r] / max(|x[r]|, kLeastLength)
struct L2NormalizeForward {
  static constexpr Op op = Op::l2_normalize_forward;
  View y, x;         // f32 [rows, width]; y may be x
  View inverse{};    // optional f32 [rows], for backward: 1 / max(|x[r]|, kLeastLength)
  View row_scale{};  // optional f32 [rows]
  int64_t rows = 0, width = 0;
  float scale = 1;
};

// With u = x[r] * inverse[r] and f = scale * row_scale[r]:
//   dx[r] = f * inverse[r] * (dy[r] - u (u . dy[r])), drow_scale[r] = scale * (u . dy[r])
// A row that was divided by kLeastLength has dx[r] = f * inverse[r] * dy[r].
struct L2NormalizeBackward {
  static constexpr Op op = Op::l2_normalize_backward;
  View dx{}, dy, x;   // f32 [rows, width]; dx may be dy
  View inverse;       // f32 [rows], of forward
  View row_scale{};   // optional f32 [rows]
  View drow_scale{};  // optional f32 [rows], with row_scale
  int64_t rows = 0, width = 0;
  float scale = 1;
  Write write = Write::overwrite;  // of dx, which may be absent
  Write row_scale_write = Write::overwrite;
};

}  // namespace kernels
