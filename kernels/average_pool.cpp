// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of average pooling.
#include "kernels/average_pool.hpp"

#include "kernels/check_views.hpp"

namespace kernels {
namespace {

// `x` is as large as the image, `y` as the pooled one; y is f32 or of x's type.
template <class Args>
void check_images(const Args& a, const char* x_name, const View& x, const char* y_name,
                  const View& y) {
  check_window(a.op, a.window, true);
  need_size(a.op, "channels", a.channels, 1);
  need_activation(a.op, x_name, x, {a.window.pixels(), a.channels});
  need_view(a.op, y_name, y, y.type == x.type ? x.type : DType::f32,
            {a.window.positions(), a.channels});
}

}  // namespace

void check(const AveragePoolForward& a) { check_images(a, "x", a.x, "y", a.y); }
Cost cost(const AveragePoolForward& a) {
  return {a.y.count * a.window.kernel_height * a.window.kernel_width, a.x.bytes() + a.y.bytes()};
}

void check(const AveragePoolBackward& a) { check_images(a, "dx", a.dx, "dy", a.dy); }
Cost cost(const AveragePoolBackward& a) {
  return {a.dy.count * a.window.kernel_height * a.window.kernel_width, a.dx.bytes() + a.dy.bytes()};
}

}  // namespace kernels
