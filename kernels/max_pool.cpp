// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of max pooling.
#include "kernels/max_pool.hpp"

#include "kernels/check_views.hpp"

namespace kernels {
namespace {

template <class Args>
void check_pool(const Args& a) {
  check_window(a.op, a.window, true);
  need_size(a.op, "channels", a.channels, 1);
  CHECK(a.window.kernel_height * a.window.kernel_width <= kMostPoolPixels,
        "{}: a window of {} x {} has more than {} pixels", name_of(a.op), a.window.kernel_height,
        a.window.kernel_width, kMostPoolPixels);
}

}  // namespace

void check(const MaxPoolForward& a) {
  check_pool(a);
  need_activation(a.op, "x", a.x, {a.window.pixels(), a.channels});
  need_view(a.op, "y", a.y, a.x.type, {a.window.positions(), a.channels});
  allow_view(a.op, "place", a.place, DType::u8, {a.window.positions(), a.channels});
}
Cost cost(const MaxPoolForward& a) {
  return {a.y.count * a.window.kernel_height * a.window.kernel_width,
          a.x.bytes() + a.y.bytes() + a.place.bytes()};
}

void check(const MaxPoolBackward& a) {
  check_pool(a);
  need_activation(a.op, "dx", a.dx, {a.window.pixels(), a.channels});
  need_view(a.op, "dy", a.dy, a.dx.type, {a.window.positions(), a.channels});
  need_view(a.op, "place", a.place, DType::u8, {a.window.positions(), a.channels});
}
Cost cost(const MaxPoolBackward& a) {
  return {a.dy.count, a.dx.bytes() + a.dy.bytes() + a.place.bytes()};
}

}  // namespace kernels
