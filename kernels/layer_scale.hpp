// SPDX-License-Identifier: Apache-2.0
// The end of a residual branch: one factor for each channel, and one for each image, by which
// stochastic depth drops the branch of some images (arXiv 2103.17239, 1603.09382).
//   y = residual + factor of the image * scale * x
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct LayerScaleForward {
  static constexpr Op op = Op::layer_scale_forward;
  View y;         // [images, rows, columns]; may be residual
  View residual;  // [images, rows, columns]
  View x;         // [images, rows, columns], f32, bf16 or f16
  View scale;     // [columns]
  View factor{};  // optional [images]: 1 without it
  int64_t images = 0, rows = 0, columns = 0;
};

struct LayerScaleBackward {
  static constexpr Op op = Op::layer_scale_backward;
  View dx;        // [images, rows, columns], of x's type
  View dscale{};  // optional [columns]; images and rows alone fix the order of sums
  View dy;        // [images, rows, columns]
  View x;         // [images, rows, columns], f32, bf16 or f16; read for dscale alone
  View scale;     // [columns]
  View factor{};  // optional [images]
  int64_t images = 0, rows = 0, columns = 0;
  Write write = Write::overwrite;  // of dscale
};
size_t cuda_scratch(const LayerScaleBackward&);

template <class Args>
void check_layer_scale(const Args& a) {
  need_size(a.op, "images", a.images);
  need_size(a.op, "rows", a.rows, 1);
  need_size(a.op, "columns", a.columns, 1);
  need_activation(a.op, "x", a.x, {a.images, a.rows, a.columns});
  need_view(a.op, "scale", a.scale, DType::f32, {a.columns});
  allow_view(a.op, "factor", a.factor, DType::f32, {a.images});
}

inline void check(const LayerScaleForward& a) {
  check_layer_scale(a);
  need_view(a.op, "y", a.y, DType::f32, {a.images, a.rows, a.columns});
  need_view(a.op, "residual", a.residual, DType::f32, {a.images, a.rows, a.columns});
}
inline Cost cost(const LayerScaleForward& a) {
  return {3 * a.x.count, a.y.bytes() + a.residual.bytes() + a.x.bytes() + a.scale.bytes()};
}

inline void check(const LayerScaleBackward& a) {
  check_layer_scale(a);
  need_view(a.op, "dx", a.dx, a.x.type, {a.images, a.rows, a.columns});
  need_view(a.op, "dy", a.dy, DType::f32, {a.images, a.rows, a.columns});
  allow_view(a.op, "dscale", a.dscale, DType::f32, {a.columns});
}
inline Cost cost(const LayerScaleBackward& a) {
  const int64_t sums = (a.write == Write::accumulate ? 2 : 1) * a.dscale.bytes();
  return {
      (a.dscale.none() ? 2 : 4) * a.dx.count,
      a.dx.bytes() + a.dy.bytes() + (a.dscale.none() ? 0 : a.x.bytes()) + a.scale.bytes() + sums};
}

}  // namespace kernels
