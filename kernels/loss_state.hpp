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

// index[i] = (place + i) mod size: the rows of a queue that the next rows replace. `place` moves
// past them.
struct QueuePlaces {
  static constexpr Op op = Op::queue_places;
  View index;  // i32 [count], count <= size
  View place;  // f32 [1], a whole number in [0, size)
  int64_t size = 0, count = 0;
};

inline void check(const MovingMean& a) {
  need_view(a.op, "mean", a.mean, DType::f32, {a.mean.count});
  need_view(a.op, "totals", a.totals, DType::f64, {a.mean.count});
  CHECK(a.count > 0, "{}: mean of {} rows", name_of(a.op), a.count);
}
inline Cost cost(const MovingMean& a) { return {4 * a.mean.count, 16 * a.mean.count}; }

inline void check(const QueuePlaces& a) {
  need_size(a.op, "size", a.size, 1);
  need_size(a.op, "count", a.count);
  CHECK(a.count <= a.size, "{}: {} rows do not fit a queue of {}", name_of(a.op), a.count, a.size);
  CHECK(a.size <= 1 << 24, "{}: places below {} may not be exact as floats", name_of(a.op), a.size);
  need_view(a.op, "index", a.index, DType::i32, {a.count});
  need_view(a.op, "place", a.place, DType::f32, {1});
}
inline Cost cost(const QueuePlaces& a) { return {0, a.index.bytes()}; }

}  // namespace kernels
