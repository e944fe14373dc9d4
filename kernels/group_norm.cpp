// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of group normalisation.
#include "kernels/group_norm.hpp"

#include "kernels/check_views.hpp"

namespace kernels {
namespace {

template <class Args>
void check_group_sizes(const Args& a) {
  need_size(a.op, "images", a.images, 1);
  need_size(a.op, "rows", a.rows, 1);
  need_size(a.op, "columns", a.columns, 1);
  CHECK(a.groups > 0 && a.columns % a.groups == 0, "{}: {} columns in {} groups", name_of(a.op),
        a.columns, a.groups);
  need_view(a.op, "sums", a.sums, DType::f64, {a.images, 2, a.columns});
}

}  // namespace

void check(const GroupNormStatistics& a) {
  check_group_sizes(a);
  need_view(a.op, "mean", a.mean, DType::f32, {a.images, a.columns});
  need_view(a.op, "rstd", a.rstd, DType::f32, {a.images, a.columns});
  CHECK(a.eps >= 0, "{}: eps is {}", name_of(a.op), a.eps);
}
Cost cost(const GroupNormStatistics& a) {
  return {2 * a.sums.count, a.mean.bytes() + a.rstd.bytes() + a.sums.bytes()};
}

void check(const GroupNormBackward& a) {
  check_group_sizes(a);
  need_activation(a.op, "dx", a.dx, {a.images, a.rows, a.columns});
  need_view(a.op, "dy", a.dy, a.dx.type, {a.images, a.rows, a.columns});
  need_view(a.op, "x", a.x, a.dx.type, {a.images, a.rows, a.columns});
  need_view(a.op, "mean", a.norm.mean, DType::f32, {a.images, a.columns});
  need_view(a.op, "rstd", a.norm.rstd, DType::f32, {a.images, a.columns});
  allow_view(a.op, "scale", a.norm.scale, DType::f32, {a.columns});
  allow_view(a.op, "bias", a.norm.bias, DType::f32, {a.columns});
}
Cost cost(const GroupNormBackward& a) {
  return {6 * a.x.count, a.dx.bytes() + a.dy.bytes() + a.x.bytes() + a.sums.bytes()};
}

}  // namespace kernels
