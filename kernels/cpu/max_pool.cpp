// SPDX-License-Identifier: Apache-2.0
// CPU implementation of max pooling and its gradient.
#include "kernels/max_pool.hpp"

#include "kernels/cpu/vector_table.hpp"
#include "kernels/cpu/window_rows.hpp"

namespace kernels {

void run_cpu(const MaxPoolForward& a, Queue& queue) {
  const Window& w = a.window;
  vector_table().with(a.x.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
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
          const int64_t pixel = (image * w.height + row * w.stride - w.padding + top) * w.width +
                                column * w.stride - w.padding + left;
          const int64_t to =
              ((image * w.out_height() + row) * w.out_width() + column) * a.channels + channel;
          loops.max_pool_forward({.y = y + to,
                                  .place = places ? places + to : nullptr,
                                  .x = x + pixel * a.channels + channel,
                                  .rows = bottom - top,
                                  .columns = right - left,
                                  .count = count,
                                  .row_step = w.width * a.channels,
                                  .column_step = a.channels,
                                  .first_place = uint32_t(top * w.kernel_width + left),
                                  .places = uint32_t(w.kernel_width)});
        });
  });
}

void run_cpu(const MaxPoolBackward& a, Queue& queue) {
  const Window& w = a.window;
  vector_table().with(a.dx.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
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
          const int64_t from =
              ((image * w.out_height() + top) * w.out_width() + left) * a.channels + channel;
          const int64_t to = ((image * w.height + row) * w.width + column) * a.channels + channel;
          const int64_t place_row = row + w.padding - top * w.stride,
                        place_column = column + w.padding - left * w.stride;
          loops.max_pool_backward(
              {.dx = dx + to,
               .dy = dy + from,
               .place = places + from,
               .rows = bottom - top,
               .columns = right - left,
               .count = count,
               .row_step = w.out_width() * a.channels,
               .column_step = a.channels,
               .first_place = uint32_t(place_row * w.kernel_width + place_column),
               .row_places = uint32_t(w.stride * w.kernel_width),
               .column_places = uint32_t(w.stride)});
        });
  });
}

}  // namespace kernels
