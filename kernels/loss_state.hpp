// SPDX-License-Identifier: Apache-2.0
// Updates of the states of losses: a queue of keys (ssl.md 3.4) and a centre (ssl.md 3.6).
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// mean = momentum * mean + (1 - momentum) * totals / count
struct MovingMean {
  static constexpr Op op = Op::moving_mean;
  View mean;    // f32 [n]
  View totals;  // f64 [n]
  double count = 1;
  float momentum = 0;
};

// Rows replace the queue's rows from `place` on, and wrap around at the queue's end. `place`
// moves past them.
struct QueueWrite {
  static constexpr Op op = Op::queue_write;
  View queue;  // f32 [size, width]
  View place;  // f32 [1], a whole number in [0, size)
  View rows;   // f32 [count, width], count <= size
  int64_t size = 0, width = 0, count = 0;
};

inline void check(const MovingMean& a) {
  need_view(a.op, "mean", a.mean, DType::f32, {a.mean.count});
  need_view(a.op, "totals", a.totals, DType::f64, {a.mean.count});
  CHECK(a.count > 0, "{}: mean of {} rows", name_of(a.op), a.count);
}
inline Cost cost(const MovingMean& a) { return {4 * a.mean.count, 16 * a.mean.count}; }

inline void check(const QueueWrite& a) {
  need_size(a.op, "size", a.size, 1);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "count", a.count);
  CHECK(a.count <= a.size, "{}: {} rows do not fit a queue of {}", name_of(a.op), a.count, a.size);
  CHECK(a.size <= 1 << 24, "{}: places below {} may not be exact as floats", name_of(a.op), a.size);
  need_view(a.op, "queue", a.queue, DType::f32, {a.size, a.width});
  need_view(a.op, "place", a.place, DType::f32, {1});
  need_view(a.op, "rows", a.rows, DType::f32, {a.count, a.width});
}
inline Cost cost(const QueueWrite& a) { return {0, 2 * a.rows.bytes()}; }

}  // namespace kernels
