// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the cross-entropy between views.
#include "kernels/view_xent.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const SoftTargets& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "y", a.y, DType::f32, {a.rows, a.columns});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.columns});
  need_view(a.op, "centre", a.centre, DType::f32, {a.columns});
  CHECK(a.temperature > 0, "{}: temperature is {}", name_of(a.op), a.temperature);
}
Cost cost(const SoftTargets& a) { return {6 * a.x.count, 2 * a.x.bytes()}; }

void check(const ViewXent& a) {
  need_size(a.op, "examples", a.examples);
  need_size(a.op, "views", a.views, 1);
  need_size(a.op, "columns", a.columns, 1);
  CHECK(a.target_count > 0 && a.target_count <= a.kMostTargets, "{}: {} targets, at most {}",
        name_of(a.op), a.target_count, a.kMostTargets);
  need_view(a.op, "loss", a.loss, DType::f32, {a.examples});
  allow_view(a.op, "gradient", a.gradient, DType::f32, {a.examples, a.views, a.columns});
  need_view(a.op, "scores", a.scores, DType::f32, {a.examples, a.views, a.columns});
  need_view(a.op, "targets", a.targets, DType::f32, {a.examples, a.target_count, a.columns});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
  CHECK(a.temperature > 0, "{}: temperature is {}", name_of(a.op), a.temperature);
  CHECK(a.pairs() > 0, "{}: no view has a target of another view", name_of(a.op));
}
Cost cost(const ViewXent& a) {
  return {(4 + 2 * a.target_count) * a.scores.count,
          a.scores.bytes() + a.gradient.bytes() + a.targets.bytes()};
}
size_t cuda_scratch(const ViewXent& a) { return size_t(a.examples * a.views) * sizeof(double); }

}  // namespace kernels
