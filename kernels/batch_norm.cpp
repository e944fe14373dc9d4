// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of batch normalisation.
#include "kernels/batch_norm.hpp"

#include "kernels/check_views.hpp"

namespace kernels {
namespace {

void check_values(Op op, const BatchNormValues& v, int64_t groups, int64_t columns) {
  need_view(op, "mean", v.mean, DType::f32, {groups, columns});
  need_view(op, "rstd", v.rstd, DType::f32, {groups, columns});
  allow_view(op, "scale", v.scale, DType::f32, {columns});
  allow_view(op, "bias", v.bias, DType::f32, {columns});
}

// Refuses an optional view of another type or size than `like`.
void allow_like(Op op, const char* name, const View& view, const View& like) {
  CHECK(view.none() || (view.type == like.type && view.count == like.count),
        "{}: {} has {} elements of {}, not {} of {}", name_of(op), name, view.count,
        device::name_of(view.type), like.count, device::name_of(like.type));
}

void check_sizes(Op op, int64_t groups, int64_t rows, int64_t columns) {
  need_size(op, "groups", groups, 1);
  need_size(op, "rows", rows);
  need_size(op, "columns", columns, 1);
}

}  // namespace

void check(const BatchNormSums& a) {
  check_sizes(a.op, a.parts, a.rows, a.columns);
  need_view(a.op, "sums", a.sums, DType::f64, {a.parts, 2, a.columns});
  need_activation(a.op, "x", a.x, {a.parts, a.rows, a.columns});
}
Cost cost(const BatchNormSums& a) { return {3 * a.x.count, a.x.bytes() + a.sums.bytes()}; }

void check(const BatchNormStatistics& a) {
  check_sizes(a.op, a.groups, 0, a.columns);
  need_view(a.op, "mean", a.mean, DType::f32, {a.groups, a.columns});
  need_view(a.op, "rstd", a.rstd, DType::f32, {a.groups, a.columns});
  CHECK(a.eps >= 0, "{}: eps is {}", name_of(a.op), a.eps);
  if (a.sums.none()) {
    CHECK(a.groups == 1 && a.moments.none(), "{}: running values are those of one group",
          name_of(a.op));
    need_view(a.op, "running_mean", a.running_mean, DType::f32, {a.columns});
    return need_view(a.op, "running_variance", a.running_variance, DType::f32, {a.columns});
  }
  need_view(a.op, "sums", a.sums, DType::f64, {a.groups, 2, a.columns});
  CHECK(a.count >= 2, "{}: a variance of {} values", name_of(a.op), a.count);
  CHECK(a.parts > 0 && a.groups % a.parts == 0, "{}: {} groups in {} parts", name_of(a.op),
        a.groups, a.parts);
  allow_view(a.op, "moments", a.moments, DType::f64, {a.parts, 2, a.columns});
}
Cost cost(const BatchNormStatistics& a) {
  return {8 * a.mean.count, a.mean.bytes() + a.rstd.bytes() + a.moments.bytes() + a.sums.bytes() +
                                a.running_mean.bytes() + a.running_variance.bytes()};
}

void check(const BatchNormRunning& a) {
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "mean", a.mean, DType::f32, {a.columns});
  need_view(a.op, "variance", a.variance, DType::f32, {a.columns});
  allow_view(a.op, "batches", a.batches, DType::f32, {1});
  need_view(a.op, "moments", a.moments, DType::f64, {2, a.columns});
}
Cost cost(const BatchNormRunning& a) {
  return {6 * a.columns, 2 * (a.mean.bytes() + a.variance.bytes()) + a.moments.bytes()};
}

void check(const BatchNormForward& a) {
  check_sizes(a.op, a.groups, a.rows, a.columns);
  need_activation(a.op, "y", a.y, {a.groups, a.rows, a.columns});
  need_view(a.op, "x", a.x, a.y.type, {a.groups, a.rows, a.columns});
  check_values(a.op, a.norm, a.groups, a.columns);
  allow_like(a.op, "shortcut", a.shortcut, a.y);
  if (a.shortcut_norm.mean.none()) return;
  CHECK(!a.shortcut.none(), "{}: values of a shortcut, but no shortcut", name_of(a.op));
  check_values(a.op, a.shortcut_norm, a.groups, a.columns);
}
Cost cost(const BatchNormForward& a) {
  return {3 * a.y.count, a.y.bytes() + a.x.bytes() + a.shortcut.bytes()};
}

void check(const BatchNormBackwardSums& a) {
  check_sizes(a.op, a.groups, a.rows, a.columns);
  CHECK(a.parts > 0 && a.parts % a.groups == 0, "{}: {} parts of {} groups", name_of(a.op), a.parts,
        a.groups);
  need_view(a.op, "sums", a.sums, DType::f64, {a.parts, 2, a.columns});
  need_activation(a.op, "dy", a.dy, {a.parts, a.rows, a.columns});
  need_view(a.op, "x", a.x, a.dy.type, {a.parts, a.rows, a.columns});
  allow_like(a.op, "g", a.g, a.dy);
  allow_like(a.op, "add", a.add, a.dy);
  allow_like(a.op, "y", a.y, a.dy);
  CHECK(a.relu || a.y.none(), "{}: y is of use with a ReLU only", name_of(a.op));
  check_values(a.op, a.norm, a.groups, a.columns);
}
Cost cost(const BatchNormBackwardSums& a) {
  return {6 * a.x.count,
          a.sums.bytes() + a.g.bytes() + a.dy.bytes() + a.add.bytes() + a.y.bytes() + a.x.bytes()};
}

void check(const BatchNormBackward& a) {
  check_sizes(a.op, a.groups, a.rows, a.columns);
  need_activation(a.op, "dx", a.dx, {a.groups, a.rows, a.columns});
  need_view(a.op, "dy", a.dy, a.dx.type, {a.groups, a.rows, a.columns});
  need_view(a.op, "x", a.x, a.dx.type, {a.groups, a.rows, a.columns});
  check_values(a.op, a.norm, a.groups, a.columns);
  allow_view(a.op, "sums", a.sums, DType::f64, {a.groups, 2, a.columns});
  CHECK(a.sums.none() || a.count > 0, "{}: means of {} values", name_of(a.op), a.count);
}
Cost cost(const BatchNormBackward& a) {
  return {6 * a.x.count, a.dx.bytes() + a.dy.bytes() + a.x.bytes()};
}

void check(const BatchNormGradients& a) {
  need_size(a.op, "parts", a.parts, 1);
  need_size(a.op, "columns", a.columns, 1);
  allow_view(a.op, "dscale", a.dscale, DType::f32, {a.columns});
  allow_view(a.op, "dbias", a.dbias, DType::f32, {a.columns});
  need_view(a.op, "sums", a.sums, DType::f64, {a.parts, 2, a.columns});
}
Cost cost(const BatchNormGradients& a) {
  return {2 * a.parts * a.columns, a.sums.bytes() + a.dscale.bytes() + a.dbias.bytes()};
}

}  // namespace kernels
