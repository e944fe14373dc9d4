// SPDX-License-Identifier: Apache-2.0
// Resampling and cropping of images: u8 or f32 [height, width, channels].
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/array.hpp"

namespace data {

// The methods of the published pipeline, with its arithmetic (TensorFlow's image kernels,
// half-pixel centres).
enum class ResizeMethod {
  bilinear,
  nearest,
  bicubic,
  area,
  lanczos3,
  lanczos5,
  gaussian,
  mitchellcubic
};
std::vector<std::string> resize_method_names();
ResizeMethod resize_method_named(std::string_view name);  // one of the names above

// To [height, width, channels] of the same type; the same size is a copy. u8 is cut to [0, 255] and
// truncated, not rounded, as the published pipeline does. `antialias` widens the kernel when
// shrinking; it changes nothing for nearest and area. Error(Exit::data) if `in` is no image or the
// result would have more than kMostPixels.
Array resize(const Array& in, int64_t height, int64_t width, ResizeMethod method, bool antialias);

// Bilinear without antialiasing (cappa.md 8.2), the default of the published recipe and the fast
// one.
Array resize_bilinear(const Array& in, int64_t height, int64_t width);

// The height x width pixels from row y and column x on, which must lie inside.
Array crop(const Array& in, int64_t y, int64_t x, int64_t height, int64_t width);

// Error(Exit::data) unless it is an image with at least one pixel
void check_image(const Array& in);

}  // namespace data
