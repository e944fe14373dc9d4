// SPDX-License-Identifier: Apache-2.0
// Rows divided by their Euclidean length (ssl.md 0), times one factor, and one more per row (weight
// norm of ssl.md 2).
#pragma once

#include "kernels/check_views.hpp"

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

inline void check(const L2NormalizeForward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_view(a.op, "y", a.y, DType::f32, {a.rows, a.width});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.width});
  allow_view(a.op, "inverse", a.inverse, DType::f32, {a.rows});
  allow_view(a.op, "row_scale", a.row_scale, DType::f32, {a.rows});
}

inline Cost cost(const L2NormalizeForward& a) {
  const int64_t n = a.rows * a.width;
  return {3 * n, 4 * (2 * n + a.rows)};
}

inline void check(const L2NormalizeBackward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  allow_view(a.op, "dx", a.dx, DType::f32, {a.rows, a.width});
  need_view(a.op, "dy", a.dy, DType::f32, {a.rows, a.width});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.width});
  need_view(a.op, "inverse", a.inverse, DType::f32, {a.rows});
  allow_view(a.op, "row_scale", a.row_scale, DType::f32, {a.rows});
  allow_view(a.op, "drow_scale", a.drow_scale, DType::f32, {a.rows});
  CHECK(a.drow_scale.none() || !a.row_scale.none(), "{}: drow_scale needs row_scale",
        name_of(a.op));
}

inline Cost cost(const L2NormalizeBackward& a) {
  const int64_t n = a.rows * a.width;
  const int64_t dx = a.dx.none() ? 0 : a.write == Write::accumulate ? 2 * n : n;
  return {6 * n, 4 * (2 * n + dx + 3 * a.rows)};
}

}  // namespace kernels
