// SPDX-License-Identifier: Apache-2.0
// Arguments of the vector loops of max pooling. Each call works on some channels of one pixel.
#pragma once

#include <cstdint>

namespace kernels {

// Forward: a pixel of y, and the pixels of its window.
template <class T>
struct MaxPoolWindow {
  T* y;
  uint8_t* place;                 // may be null
  const T* x;                     // the first pixel
  int64_t rows, columns, count;   // pixels, and channels
  int64_t row_step, column_step;  // elements to the pixel below, and to the next one
  uint32_t first_place, places;   // of the first pixel; from one row of the window to the next
};

// Backward: a pixel of dx, and the windows that contain it.
template <class T>
struct MaxPoolPixel {
  T* dx;
  const T* dy;           // of the first window
  const uint8_t* place;  // its winners
  int64_t rows, columns, count;
  int64_t row_step, column_step;  // elements to the window below, and to the next one
  // The pixel's place in the first window, and how much smaller it is in each next window.
  uint32_t first_place, row_places, column_places;
};

}  // namespace kernels
