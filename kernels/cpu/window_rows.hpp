// SPDX-License-Identifier: Apache-2.0
// Loops of poolings over rows of pixels, in parts of the channels that fit the first-level cache.
#pragma once

#include <algorithm>

#include "kernels/bf16_value.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/window.hpp"
#include "kernels/window_range.hpp"

namespace kernels {

constexpr int64_t kPoolChannels = 64;  // of a part

// Calls f(image, row, column, channel, count) for each pixel and part of the channels of images
// with `rows` x `columns` pixels. `work` is the number of elements touched in all.
template <class F>
void for_pooled_pixels(Queue& queue, int64_t images, int64_t rows, int64_t columns,
                       int64_t channels, int64_t work, const F& f) {
  for_ranges(queue, images * rows, work, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r)
      for (int64_t column = 0; column < columns; ++column)
        for (int64_t c = 0; c < channels; c += kPoolChannels)
          f(r / rows, r % rows, column, c, std::min(kPoolChannels, channels - c));
  });
}

// Calls f(element) with an element of the type that represents activations of `type`.
template <class F>
void with_element(DType type, const F& f) {
  if (type == DType::bf16) return f(loops::Bf16{});
  CHECK(type == DType::f32, "only GPUs have activations of {}", device::name_of(type));
  f(float{});
}

}  // namespace kernels
