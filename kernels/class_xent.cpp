// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the cross-entropy over classes.
#include "kernels/class_xent.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const ClassXent& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "logits", a.logits, DType::f32, {a.rows, a.columns});
  need_view(a.op, "labels", a.labels, DType::i32, {a.rows});
  CHECK(a.others.none() == a.shares.none(), "{}: others and shares come together", name_of(a.op));
  allow_view(a.op, "others", a.others, DType::i32, {a.rows});
  allow_view(a.op, "shares", a.shares, DType::f32, {a.rows});
  need_view(a.op, "loss", a.loss, DType::f32, {a.rows});
  allow_view(a.op, "ranks", a.ranks, DType::i32, {a.rows});
  allow_view(a.op, "hits", a.hits, DType::u8, {a.rows});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
  CHECK(a.smoothing >= 0 && a.smoothing < 1, "{}: smoothing is {}, must lie in [0, 1)",
        name_of(a.op), a.smoothing);
  CHECK(a.smoothing == 0 || a.columns > 1, "{}: smoothing needs two columns", name_of(a.op));
  CHECK(a.columns <= INT32_MAX, "{}: {} columns exceed 2^31 - 1", name_of(a.op), a.columns);
}

Cost cost(const ClassXent& a) {
  const int64_t n = a.rows * a.columns;
  return {(a.gradient ? 6 : 4) * n, 4 * ((a.gradient ? 2 : 1) * n + 3 * a.rows)};
}

}  // namespace kernels
