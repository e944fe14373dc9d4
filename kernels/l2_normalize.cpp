// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of rows divided by their length.
#include "kernels/l2_normalize.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const L2NormalizeForward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_view(a.op, "y", a.y, DType::f32, {a.rows, a.width});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.width});
  allow_view(a.op, "inverse", a.inverse, DType::f32, {a.rows});
  allow_view(a.op, "row_scale", a.row_scale, DType::f32, {a.rows});
}

Cost cost(const L2NormalizeForward& a) {
  const int64_t n = a.rows * a.width;
  return {3 * n, 4 * (2 * n + a.rows)};
}

void check(const L2NormalizeBackward& a) {
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

Cost cost(const L2NormalizeBackward& a) {
  const int64_t n = a.rows * a.width;
  const int64_t dx = a.dx.none() ? 0 : a.write == Write::accumulate ? 2 * n : n;
  return {6 * n, 4 * (2 * n + dx + 3 * a.rows)};
}

}  // namespace kernels
