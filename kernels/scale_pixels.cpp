// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of scale_pixels.
#include "kernels/scale_pixels.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const ScalePixels& a) {
  need_activation(a.op, "y", a.y, {a.y.count});
  need_view(a.op, "x", a.x, a.x.type == DType::u8 ? DType::u8 : DType::f32, {a.y.count});
  CHECK(a.y.count % 3 == 0, "{}: {} values are not pixels of three channels", name_of(a.op),
        a.y.count);
  CHECK(a.range.valid(), "{}: the range of bytes has no width", name_of(a.op));
}

Cost cost(const ScalePixels& a) { return {0, a.y.bytes() + a.x.bytes()}; }

}  // namespace kernels
