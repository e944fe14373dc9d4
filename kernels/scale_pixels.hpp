// SPDX-License-Identifier: Apache-2.0
// Images as a trunk's first product reads them: bytes become their values, and values are rounded
// to the type of activations.
#pragma once

#include "kernels/check_views.hpp"
#include "kernels/pixel_range.hpp"

namespace kernels {

struct ScalePixels {
  static constexpr Op op = Op::scale_pixels;
  View y;              // [pixels, 3], f32, bf16 or f16
  View x;              // [pixels, 3], u8 or f32
  PixelRange range{};  // of bytes
};

inline void check(const ScalePixels& a) {
  need_activation(a.op, "y", a.y, {a.y.count});
  need_view(a.op, "x", a.x, a.x.type == DType::u8 ? DType::u8 : DType::f32, {a.y.count});
  CHECK(a.y.count % 3 == 0, "{}: {} values are not pixels of three channels", name_of(a.op),
        a.y.count);
  CHECK(a.range.valid(), "{}: the range of bytes has no width", name_of(a.op));
}

inline Cost cost(const ScalePixels& a) { return {0, a.y.bytes() + a.x.bytes()}; }

}  // namespace kernels
