// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last axis (cappa.md 1.3), with biased variance:
//   y = (x - mean) * (rstd * scale) + bias
// The variance is computed in two passes, because the published form E[x^2] - mean^2 cancels. The
// difference is within the tolerance of the golden cases.
#pragma once

#include "kernels/check_views.hpp"

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
  // The previous layer needs these two. Here they need no separate pass. Both need dx.
  View rounded{};  // optional [rows, columns]: dx in bf16 or f16, the type of a narrow dy
  View sums{};     // optional [columns]: sums of dx over rows, overwritten
};
size_t cuda_scratch(const LayerNormBackward&);

inline void check(const LayerNormForward& a) {
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

inline Cost cost(const LayerNormForward& a) {
  int64_t n = a.rows * a.columns;
  return {8 * n, a.y.bytes() + 4 * (n + 2 * a.rows + (a.bias.none() ? 1 : 2) * a.columns)};
}

inline void check(const LayerNormBackward& a) {
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

inline Cost cost(const LayerNormBackward& a) {
  int64_t n = a.rows * a.columns;
  int64_t dx = a.dx.none() ? 0 : a.dx_write == Write::accumulate ? 2 * n : n;
  int64_t params = (!a.dscale.none() + !a.dbias.none()) * a.columns *
                   (a.param_write == Write::accumulate ? 2 : 1);
  return {16 * n, a.dy.bytes() + 4 * (n + dx + params + 2 * a.rows + a.columns) +
                      a.rounded.bytes() + a.sums.bytes()};
}

}  // namespace kernels
