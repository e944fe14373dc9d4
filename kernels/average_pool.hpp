// SPDX-License-Identifier: Apache-2.0
// The mean of each window, and its gradient. Pixels of the padding are zeros, and count (ssl.md 8).
// A window as large as the image is global average pooling.
#pragma once

#include "kernels/window.hpp"

namespace kernels {

// y = the sum of the window / its number of pixels, summed in f32, by rows and columns.
struct AveragePoolForward {
  static constexpr Op op = Op::average_pool_forward;
  View y;  // [batch, out_height, out_width, channels], f32 or of x's type
  View x;  // [batch, height, width, channels], f32, bf16 or f16
  Window window;
  int64_t channels = 0;
};

// dx = the sum of dy over the windows with the pixel / their number of pixels, in f32.
struct AveragePoolBackward {
  static constexpr Op op = Op::average_pool_backward;
  View dx;  // [batch, height, width, channels], f32, bf16 or f16
  View dy;  // [batch, out_height, out_width, channels], f32 or of dx's type
  Window window;
  int64_t channels = 0;
};

}  // namespace kernels
