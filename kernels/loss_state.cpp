// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the updates of losses' states.
#include "kernels/loss_state.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const MovingMean& a) {
  need_view(a.op, "mean", a.mean, DType::f32, {a.mean.count});
  need_view(a.op, "totals", a.totals, DType::f64, {a.mean.count});
  CHECK(a.count > 0, "{}: mean of {} rows", name_of(a.op), a.count);
}
Cost cost(const MovingMean& a) { return {4 * a.mean.count, 16 * a.mean.count}; }

void check(const QueueWrite& a) {
  need_size(a.op, "size", a.size, 1);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "count", a.count);
  CHECK(a.count <= a.size, "{}: {} rows do not fit a queue of {}", name_of(a.op), a.count, a.size);
  CHECK(a.size <= 1 << 24, "{}: a place below {} may not be a float", name_of(a.op), a.size);
  need_view(a.op, "queue", a.queue, DType::f32, {a.size, a.width});
  need_view(a.op, "place", a.place, DType::f32, {1});
  need_view(a.op, "rows", a.rows, DType::f32, {a.count, a.width});
}
Cost cost(const QueueWrite& a) { return {0, 2 * a.rows.bytes()}; }

}  // namespace kernels
