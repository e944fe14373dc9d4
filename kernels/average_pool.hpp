// SPDX-License-Identifier: Apache-2.0
// The mean of each window, and its gradient. Pixels of the padding are zeros, and count (ssl.md 8).
// A window as large as the image is global average pooling.
#pragma once

#include "kernels/check_views.hpp"
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

// `x` is as large as the image, `y` as the pooled one; y is f32 or of x's type.
template <class Args>
void check_average_pool(const Args& a, const char* x_name, const View& x, const char* y_name,
                        const View& y) {
  check_window(a.op, a.window, true);
  need_size(a.op, "channels", a.channels, 1);
  need_activation(a.op, x_name, x, {a.window.pixels(), a.channels});
  need_view(a.op, y_name, y, y.type == x.type ? x.type : DType::f32,
            {a.window.positions(), a.channels});
}

inline void check(const AveragePoolForward& a) { check_average_pool(a, "x", a.x, "y", a.y); }
inline Cost cost(const AveragePoolForward& a) {
  return {a.y.count * a.window.kernel_height * a.window.kernel_width, a.x.bytes() + a.y.bytes()};
}

inline void check(const AveragePoolBackward& a) { check_average_pool(a, "dx", a.dx, "dy", a.dy); }
inline Cost cost(const AveragePoolBackward& a) {
  return {a.dy.count * a.window.kernel_height * a.window.kernel_width, a.dx.bytes() + a.dy.bytes()};
}

}  // namespace kernels
