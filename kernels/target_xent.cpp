// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the cross-entropy with targets.
#include "kernels/target_xent.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const TargetXent& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "logits", a.logits, DType::f32, {a.rows, a.columns});
  need_view(a.op, "targets", a.targets, DType::f32, {a.rows, a.columns});
  allow_view(a.op, "weights", a.weights, DType::f32, {a.columns});
  need_view(a.op, "loss", a.loss, DType::f32, {a.rows});
  allow_view(a.op, "hits", a.hits, DType::u8, {a.rows});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
}

Cost cost(const TargetXent& a) {
  const int64_t n = a.rows * a.columns;
  return {(a.gradient ? 6 : 4) * n, 4 * ((a.gradient ? 3 : 2) * n + a.columns + a.rows)};
}

}  // namespace kernels
