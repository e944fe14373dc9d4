// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of layer normalisation.
#include "kernels/layer_norm.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const LayerNormForward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  CHECK(a.eps >= 0, "{}: eps is {}", name_of(a.op), a.eps);
  need_activation(a.op, "y", a.y, {a.rows, a.columns});
  need_view(a.op, "mean", a.mean, DType::f32, {a.rows});
  need_view(a.op, "rstd", a.rstd, DType::f32, {a.rows});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.columns});
  need_view(a.op, "scale", a.scale, DType::f32, {a.columns});
  allow_view(a.op, "bias", a.bias, DType::f32, {a.columns});
}

Cost cost(const LayerNormForward& a) {
  int64_t n = a.rows * a.columns;
  return {8 * n, a.y.bytes() + 4 * (n + 2 * a.rows + (a.bias.none() ? 1 : 2) * a.columns)};
}

void check(const LayerNormBackward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  allow_view(a.op, "dx", a.dx, DType::f32, {a.rows, a.columns});
  allow_view(a.op, "dscale", a.dscale, DType::f32, {a.columns});
  allow_view(a.op, "dbias", a.dbias, DType::f32, {a.columns});
  need_activation(a.op, "dy", a.dy, {a.rows, a.columns});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.columns});
  need_view(a.op, "mean", a.mean, DType::f32, {a.rows});
  need_view(a.op, "rstd", a.rstd, DType::f32, {a.rows});
  need_view(a.op, "scale", a.scale, DType::f32, {a.columns});
  const DType narrow = a.dy.type != DType::f32        ? a.dy.type
                       : a.rounded.type == DType::f16 ? DType::f16
                                                      : DType::bf16;
  allow_view(a.op, "rounded", a.rounded, narrow, {a.rows, a.columns});
  allow_view(a.op, "sums", a.sums, DType::f32, {a.columns});
  CHECK(!a.dx.none() || (a.rounded.none() && a.sums.none()), "{}: rounded and sums go with dx only",
        name_of(a.op));
}

Cost cost(const LayerNormBackward& a) {
  int64_t n = a.rows * a.columns;
  int64_t dx = a.dx.none() ? 0 : a.dx_write == Write::accumulate ? 2 * n : n;
  int64_t params = (!a.dscale.none() + !a.dbias.none()) * a.columns *
                   (a.param_write == Write::accumulate ? 2 : 1);
  return {16 * n, a.dy.bytes() + 4 * (n + dx + params + 2 * a.rows + a.columns) +
                      a.rounded.bytes() + a.sums.bytes()};
}

}  // namespace kernels
