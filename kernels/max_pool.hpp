// SPDX-License-Identifier: Apache-2.0
// The largest value of each window, and the gradient. Padding never wins (ssl.md 1.1).
#pragma once

#include "kernels/window.hpp"

namespace kernels {

// Windows have at most this many pixels, because a place in a window is one byte.
constexpr int64_t kMostPoolPixels = 256;

// y = the largest x of the window. Among equal values the first one wins, in the order of rows and
// columns. A value that is not a number wins over numbers.
struct MaxPoolForward {
  static constexpr Op op = Op::max_pool_forward;
  View y;      // [batch, out_height, out_width, channels], of x's type
  View place;  // optional u8, like y: the winner's place, row * kernel_width + column
  View x;      // [batch, height, width, channels], f32, bf16 or f16
  Window window;
  int64_t channels = 0;
};

// dx = the sum of dy over the windows that x won, in f32, in the order of windows.
struct MaxPoolBackward {
  static constexpr Op op = Op::max_pool_backward;
  View dx;     // [batch, height, width, channels], f32, bf16 or f16
  View dy;     // [batch, out_height, out_width, channels], of dx's type
  View place;  // u8, from forward
  Window window;
  int64_t channels = 0;
};

}  // namespace kernels
