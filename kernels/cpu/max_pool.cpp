// SPDX-License-Identifier: Apache-2.0
// CPU implementation of max pooling and its gradient.
#include "kernels/max_pool.hpp"

#include <limits>

#include "kernels/cpu/window_rows.hpp"

namespace kernels {
namespace {

// The winners of one window in some channels.
struct Winners {
  float value[kPoolChannels];
  int32_t place[kPoolChannels];

  // `first` is the place of the first pixel, which wins if all values are the least.
  explicit Winners(int64_t first) {
    std::fill(value, value + kPoolChannels, -std::numeric_limits<float>::infinity());
    std::fill(place, place + kPoolChannels, int32_t(first));
  }
  template <class T>
  void meet(const T* x, int64_t count, int32_t at) {
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) {
      const float v = loops::to_float(x[j]);
      const bool wins = !(v <= value[j]) && !(value[j] != value[j] && v == v);
      value[j] = wins ? v : value[j];
      place[j] = wins ? at : place[j];
    }
  }
};

template <class T>
void pool(const MaxPoolForward& a, Queue& queue) {
  const Window& w = a.window;
  const T* x = static_cast<const T*>(a.x.data);
  T* y = static_cast<T*>(a.y.data);
  uint8_t* places = a.place.none() ? nullptr : a.place.u8();
  for_pooled_pixels(
      queue, w.batch, w.out_height(), w.out_width(), a.channels, a.x.count,
      [&](int64_t image, int64_t row, int64_t column, int64_t channel, int64_t count) {
        const auto [top, bottom] =
            places_on_pixels(row, w.stride, w.padding, w.kernel_height, w.height);
        const auto [left, right] =
            places_on_pixels(column, w.stride, w.padding, w.kernel_width, w.width);
        Winners best(top * w.kernel_width + left);
        for (int64_t i = top; i < bottom; ++i)
          for (int64_t j = left; j < right; ++j) {
            const int64_t pixel = (image * w.height + row * w.stride - w.padding + i) * w.width +
                                  column * w.stride - w.padding + j;
            best.meet(x + pixel * a.channels + channel, count, int32_t(i * w.kernel_width + j));
          }
        const int64_t to =
            ((image * w.out_height() + row) * w.out_width() + column) * a.channels + channel;
        for (int64_t j = 0; j < count; ++j) y[to + j] = loops::store_as<T>(best.value[j]);
        if (places)
          for (int64_t j = 0; j < count; ++j) places[to + j] = uint8_t(best.place[j]);
      });
}

template <class T>
void spread(const MaxPoolBackward& a, Queue& queue) {
  const Window& w = a.window;
  const T* dy = static_cast<const T*>(a.dy.data);
  const uint8_t* places = a.place.u8();
  T* dx = static_cast<T*>(a.dx.data);
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
            const T* from = dy + position * a.channels + channel;
            const uint8_t* winner = places + position * a.channels + channel;
            const int32_t here = int32_t((row + w.padding - i * w.stride) * w.kernel_width +
                                         column + w.padding - j * w.stride);
#pragma omp simd
            for (int64_t k = 0; k < count; ++k)
              sum[k] += int32_t(winner[k]) == here ? loops::to_float(from[k]) : 0.0f;
          }
        T* to = dx + ((image * w.height + row) * w.width + column) * a.channels + channel;
        for (int64_t k = 0; k < count; ++k) to[k] = loops::store_as<T>(sum[k]);
      });
}

}  // namespace

void run_cpu(const MaxPoolForward& a, Queue& queue) {
  with_element(a.x.type, [&](auto element) { pool<decltype(element)>(a, queue); });
}

void run_cpu(const MaxPoolBackward& a, Queue& queue) {
  with_element(a.dx.type, [&](auto element) { spread<decltype(element)>(a, queue); });
}

}  // namespace kernels
