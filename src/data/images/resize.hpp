// SPDX-License-Identifier: Apache-2.0
// Resamples and crops images: u8 or f32 [height, width, channels].
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/array.hpp"

namespace data {

// The methods of the published pipeline, with the arithmetic of TensorFlow's image kernels
// (half-pixel centres).
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

// Resizes to [height, width, channels] of the same type; an image of that size is copied. u8 is
// clipped to [0, 255] and truncated, not rounded, as in the published pipeline. `antialias` widens
// the kernel when shrinking; it changes nothing for nearest and area. Throws Error(Exit::data) if
// `in` is not an image or the result would have more than kMostPixels.
Array resize(const Array& in, int64_t height, int64_t width, ResizeMethod method, bool antialias);

// Resizes bilinearly without antialiasing (cappa.md 8.2), the default of the published recipe. This
// method is the fast one.
Array resize_bilinear(const Array& in, int64_t height, int64_t width);

// Returns the height x width pixels that begin at row y and column x. They must be inside the
// image.
Array crop(const Array& in, int64_t y, int64_t x, int64_t height, int64_t width);

// Throws Error(Exit::data) unless `in` is an image with at least one pixel.
void check_image(const Array& in);

}  // namespace data
