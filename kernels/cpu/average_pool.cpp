// SPDX-License-Identifier: Apache-2.0
// CPU implementation of average pooling and its gradient.
#include "kernels/average_pool.hpp"

#include "kernels/cpu/window_rows.hpp"

namespace kernels {
namespace {

template <class T>
void add_to(float* sum, const T* x, int64_t count) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) sum[j] += loops::to_float(x[j]);
}

template <class Y, class X>
void pool(const AveragePoolForward& a, Queue& queue) {
  const Window& w = a.window;
  const X* x = static_cast<const X*>(a.x.data);
  Y* y = static_cast<Y*>(a.y.data);
  const float pixels = float(w.kernel_height * w.kernel_width);
  for_pooled_pixels(
      queue, w.batch, w.out_height(), w.out_width(), a.channels, a.x.count,
      [&](int64_t image, int64_t row, int64_t column, int64_t channel, int64_t count) {
        const auto [top, bottom] =
            places_on_pixels(row, w.stride, w.padding, w.kernel_height, w.height);
        const auto [left, right] =
            places_on_pixels(column, w.stride, w.padding, w.kernel_width, w.width);
        float sum[kPoolChannels] = {};
        for (int64_t i = top; i < bottom; ++i)
          for (int64_t j = left; j < right; ++j) {
            const int64_t pixel = (image * w.height + row * w.stride - w.padding + i) * w.width +
                                  column * w.stride - w.padding + j;
            add_to(sum, x + pixel * a.channels + channel, count);
          }
        Y* to =
            y + ((image * w.out_height() + row) * w.out_width() + column) * a.channels + channel;
        for (int64_t j = 0; j < count; ++j) to[j] = loops::store_as<Y>(sum[j] / pixels);
      });
}

template <class X, class Y>
void spread(const AveragePoolBackward& a, Queue& queue) {
  const Window& w = a.window;
  const Y* dy = static_cast<const Y*>(a.dy.data);
  X* dx = static_cast<X*>(a.dx.data);
  const float pixels = float(w.kernel_height * w.kernel_width);
  for_pooled_pixels(
      queue, w.batch, w.height, w.width, a.channels, a.dx.count,
      [&](int64_t image, int64_t row, int64_t column, int64_t channel, int64_t count) {
        const auto [top, bottom] =
            positions_with(row, w.stride, w.padding, w.kernel_height, w.out_height());
        const auto [left, right] =
            positions_with(column, w.stride, w.padding, w.kernel_width, w.out_width());
        float sum[kPoolChannels] = {};
        for (int64_t i = top; i < bottom; ++i)
          for (int64_t j = left; j < right; ++j) {
            const int64_t position = (image * w.out_height() + i) * w.out_width() + j;
            add_to(sum, dy + position * a.channels + channel, count);
          }
        X* to = dx + ((image * w.height + row) * w.width + column) * a.channels + channel;
        for (int64_t k = 0; k < count; ++k) to[k] = loops::store_as<X>(sum[k] / pixels);
      });
}

}  // namespace

void run_cpu(const AveragePoolForward& a, Queue& queue) {
  with_element(a.x.type, [&](auto x) {
    with_element(a.y.type, [&](auto y) { pool<decltype(y), decltype(x)>(a, queue); });
  });
}

void run_cpu(const AveragePoolBackward& a, Queue& queue) {
  with_element(a.dx.type, [&](auto dx) {
    with_element(a.dy.type, [&](auto dy) { spread<decltype(dx), decltype(dy)>(a, queue); });
  });
}

}  // namespace kernels
