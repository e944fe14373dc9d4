// SPDX-License-Identifier: Apache-2.0
// Arithmetic on windows along one dimension, which CPU and CUDA code share.
#pragma once

#include <cstdint>

namespace kernels {

struct WindowRange {
  int64_t begin, end;  // empty if end <= begin
};

// Returns the places of the window at `position` that are on pixels, not on padding.
constexpr WindowRange places_on_pixels(int64_t position, int64_t stride, int64_t padding,
                                       int64_t kernel, int64_t length) {
  const int64_t first = position * stride - padding;
  return {first < 0 ? -first : 0, kernel < length - first ? kernel : length - first};
}

// Returns the positions whose window contains the pixel.
constexpr WindowRange positions_with(int64_t pixel, int64_t stride, int64_t padding, int64_t kernel,
                                     int64_t positions) {
  const int64_t at = pixel + padding, end = at / stride + 1;
  return {at < kernel ? 0 : (at - kernel) / stride + 1, end < positions ? end : positions};
}

}  // namespace kernels
