// SPDX-License-Identifier: Apache-2.0
// The largest value of each window, and the gradient. Padding never wins (ssl.md 1.1).
#pragma once

#include "kernels/check_views.hpp"
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

template <class Args>
void check_pool(const Args& a) {
  check_window(a.op, a.window, true);
  need_size(a.op, "channels", a.channels, 1);
  CHECK(a.window.kernel_height * a.window.kernel_width <= kMostPoolPixels,
        "{}: a window of {} x {} has more than {} pixels", name_of(a.op), a.window.kernel_height,
        a.window.kernel_width, kMostPoolPixels);
}

inline void check(const MaxPoolForward& a) {
  check_pool(a);
  need_activation(a.op, "x", a.x, {a.window.pixels(), a.channels});
  need_view(a.op, "y", a.y, a.x.type, {a.window.positions(), a.channels});
  allow_view(a.op, "place", a.place, DType::u8, {a.window.positions(), a.channels});
}
inline Cost cost(const MaxPoolForward& a) {
  return {a.y.count * a.window.kernel_height * a.window.kernel_width,
          a.x.bytes() + a.y.bytes() + a.place.bytes()};
}

inline void check(const MaxPoolBackward& a) {
  check_pool(a);
  need_activation(a.op, "dx", a.dx, {a.window.pixels(), a.channels});
  need_view(a.op, "dy", a.dy, a.dx.type, {a.window.positions(), a.channels});
  need_view(a.op, "place", a.place, DType::u8, {a.window.positions(), a.channels});
}
inline Cost cost(const MaxPoolBackward& a) {
  return {a.dy.count, a.dx.bytes() + a.dy.bytes() + a.place.bytes()};
}

}  // namespace kernels
