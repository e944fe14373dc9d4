// SPDX-License-Identifier: Apache-2.0
// Windows that slide over images: what convolutions and poolings share. Images are
// [batch, height, width, channels]: the channels of a pixel are contiguous (NHWC).
#pragma once

#include <algorithm>
#include <compare>

#include "kernels/check_views.hpp"

namespace kernels {

// Images, and a window that moves over them by `stride`, after `padding` pixels are added on each
// side. The window has as many positions as fit (ssl.md 1.1).
struct Window {
  int64_t batch = 0, height = 0, width = 0;
  int64_t kernel_height = 1, kernel_width = 1;
  int64_t stride = 1, padding = 0;

  constexpr int64_t out_height() const {
    return (height + 2 * padding - kernel_height) / stride + 1;
  }
  constexpr int64_t out_width() const { return (width + 2 * padding - kernel_width) / stride + 1; }
  constexpr int64_t pixels() const { return batch * height * width; }
  constexpr int64_t positions() const { return batch * out_height() * out_width(); }
  auto operator<=>(const Window&) const = default;
};

// Refuses sizes below 1 (the batch may be 0), and a window larger than a padded image. If
// `padding_at_most_half`, each position of the window must hold a pixel.
inline void check_window(Op op, const Window& w, bool padding_at_most_half) {
  need_size(op, "batch", w.batch);
  need_size(op, "height", w.height, 1);
  need_size(op, "width", w.width, 1);
  need_size(op, "kernel_height", w.kernel_height, 1);
  need_size(op, "kernel_width", w.kernel_width, 1);
  need_size(op, "stride", w.stride, 1);
  need_size(op, "padding", w.padding);
  CHECK(w.kernel_height <= w.height + 2 * w.padding && w.kernel_width <= w.width + 2 * w.padding,
        "{}: a window of {} x {} does not fit images of {} x {} with padding {}", name_of(op),
        w.kernel_height, w.kernel_width, w.height, w.width, w.padding);
  CHECK(!padding_at_most_half || 2 * w.padding <= std::min(w.kernel_height, w.kernel_width),
        "{}: padding {} is more than half of the window of {} x {}", name_of(op), w.padding,
        w.kernel_height, w.kernel_width);
}

}  // namespace kernels
