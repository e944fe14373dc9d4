// SPDX-License-Identifier: Apache-2.0
// Checks of windows that slide over images.
#include "kernels/window.hpp"

#include <algorithm>

#include "kernels/check_views.hpp"

namespace kernels {

void check_window(Op op, const Window& w, bool padding_at_most_half) {
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
