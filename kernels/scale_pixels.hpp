// SPDX-License-Identifier: Apache-2.0
// Images as a trunk's first product reads them: bytes become their values, and values are rounded
// to the type of activations.
#pragma once

#include "kernels/dispatch.hpp"
#include "kernels/pixel_range.hpp"

namespace kernels {

struct ScalePixels {
  static constexpr Op op = Op::scale_pixels;
  View y;              // [pixels, 3], f32, bf16 or f16
  View x;              // [pixels, 3], u8 or f32
  PixelRange range{};  // of bytes
};

}  // namespace kernels
