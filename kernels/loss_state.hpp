// SPDX-License-Identifier: Apache-2.0
// Updates of the states of losses: a queue of keys (ssl.md 3.4) and a centre (ssl.md 3.6).
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// mean = momentum * mean + (1 - momentum) * totals / count
struct MovingMean {
  static constexpr Op op = Op::moving_mean;
  View mean;    // f32 [n]
  View totals;  // f64 [n]
  double count = 1;
  float momentum = 0;
};

// Rows replace those of the queue from `place` on, at its end from its beginning. place moves
// behind them.
struct QueueWrite {
  static constexpr Op op = Op::queue_write;
  View queue;  // f32 [size, width]
  View place;  // f32 [1], a whole number in [0, size)
  View rows;   // f32 [count, width], count <= size
  int64_t size = 0, width = 0, count = 0;
};

}  // namespace kernels
