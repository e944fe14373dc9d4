// SPDX-License-Identifier: Apache-2.0
// Lines of images under a window: what our own convolutions multiply (portable_convolution.cpp).
#pragma once

#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/convolution.hpp"
#include "kernels/cpu/product_tile.hpp"

namespace kernels {

inline int64_t taps_of(const ConvolutionShape& s) {
  return s.window.kernel_height * s.window.kernel_width;
}

// Places of a window on images. Place (image, y, x) covers `rows` x `columns` pixels; the first one
// is (y * step + first_y, x * step + first_x). Pixels outside the image are 0. A line is one row of
// the window, with `channels` numbers of each pixel. If a pixel holds more numbers (groups), a line
// is one pixel.
template <class T>
struct WindowLines {
  const T* images;               // the first channel that counts
  int64_t height, width, pixel;  // pixel: elements from one to the next
  int64_t places_y, places_x, step, first_y, first_x;
  int64_t rows, columns, channels;

  bool whole_rows() const { return pixel == channels || columns == 1; }
  int64_t lines() const { return whole_rows() ? rows : rows * columns; }
  int64_t line_size() const { return (whole_rows() ? columns : 1) * channels; }
};

// Visits places in order, without a division for each.
template <class T>
class Places {
 public:
  Places(const WindowLines<T>& w, int64_t place)
      : w_(w),
        x_(place % w.places_x),
        y_(place / w.places_x % w.places_y),
        image_(w.images + place / w.places_x / w.places_y * w.height * w.width * w.pixel) {}

  void next() {
    if (++x_ < w_.places_x) return;
    x_ = 0;
    if (++y_ < w_.places_y) return;
    y_ = 0;
    image_ += w_.height * w_.width * w_.pixel;
  }

  // Elements [begin, begin + length) of a line: `count` of them from `from` on, after `before`
  // zeros; the others are 0.
  struct Segment {
    const T* from;
    int64_t before, count;
  };
  Segment at(int64_t line, int64_t begin, int64_t length) const {
    const bool whole = w_.whole_rows();
    const int64_t row = whole ? line : line / w_.columns, column = whole ? 0 : line % w_.columns;
    const int64_t y = y_ * w_.step + w_.first_y + row, x = x_ * w_.step + w_.first_x + column;
    if (y < 0 || y >= w_.height) return {nullptr, 0, 0};
    const int64_t start = (y * w_.width + x) * w_.pixel;  // of the line, perhaps outside
    if (x >= 0 && x + (whole ? w_.columns : 1) <= w_.width)
      return {image_ + start + begin, 0, length};
    const int64_t low = std::clamp(-x * w_.channels, begin, begin + length),
                  high = std::clamp((w_.width - x) * w_.channels, low, begin + length);
    if (low == high) return {nullptr, 0, 0};
    return {image_ + start + low, low - begin, high - low};
  }

 private:
  const WindowLines<T>& w_;
  int64_t x_, y_;
  const T* image_;
};

// Pixels of one phase of the stride: their rows (columns) see every `stride`-th row (column) of the
// window. first: the first pixel; taps: how many; last_tap: the largest one.
struct Phase {
  int64_t first, pixels, taps, last_tap, first_position;
};
inline Phase phase_of(int64_t first, int64_t size, int64_t kernel, int64_t stride,
                      int64_t padding) {
  const int64_t rest = (first + padding) % stride;
  Phase p{};
  p.first = first;
  p.pixels = base::ceil_div(size - first, stride);
  p.taps = rest < kernel ? base::ceil_div(kernel - rest, stride) : 0;
  p.last_tap = rest + (p.taps - 1) * stride;
  // Exact: both have the same rest.
  p.first_position = (first + padding - p.last_tap) / stride;
  return p;
}

}  // namespace kernels
