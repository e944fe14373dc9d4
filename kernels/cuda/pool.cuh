// SPDX-License-Identifier: Apache-2.0
// Windows of poolings in CUDA kernels. A warp has 32 neighbouring packs of one pixel's channels.
#pragma once

#include "kernels/cuda/rows.cuh"
#include "kernels/window.hpp"
#include "kernels/window_range.hpp"

namespace kernels {

// Calls f(pixel, place) for the pixels of the window at `position`, by rows and columns.
template <class F>
__device__ inline void for_pixels_of(const Window& w, int64_t position, const F& f) {
  const int64_t columns = w.out_width(), rows = w.out_height();
  const int64_t column = position % columns, row = position / columns % rows,
                image = position / columns / rows;
  const WindowRange i = places_on_pixels(row, w.stride, w.padding, w.kernel_height, w.height),
                    j = places_on_pixels(column, w.stride, w.padding, w.kernel_width, w.width);
  for (int64_t a = i.begin; a < i.end; ++a)
    for (int64_t b = j.begin; b < j.end; ++b)
      f((image * w.height + row * w.stride - w.padding + a) * w.width + column * w.stride -
            w.padding + b,
        int(a * w.kernel_width + b));
}

// Calls f(position, place of the pixel) for the windows with `pixel`, in their order.
template <class F>
__device__ inline void for_windows_with(const Window& w, int64_t pixel, const F& f) {
  const int64_t column = pixel % w.width, row = pixel / w.width % w.height,
                image = pixel / w.width / w.height;
  const WindowRange i = positions_with(row, w.stride, w.padding, w.kernel_height, w.out_height()),
                    j = positions_with(column, w.stride, w.padding, w.kernel_width, w.out_width());
  for (int64_t a = i.begin; a < i.end; ++a)
    for (int64_t b = j.begin; b < j.end; ++b)
      f((image * w.out_height() + a) * w.out_width() + b,
        int((row + w.padding - a * w.stride) * w.kernel_width + column + w.padding - b * w.stride));
}

}  // namespace kernels
