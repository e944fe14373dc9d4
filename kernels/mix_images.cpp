// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of mixup.
#include "kernels/mix_images.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const MixImages& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "count", a.count, 1);
  need_size(a.op, "group", a.group, 1);
  CHECK(a.batch % a.group == 0, "{}: {} examples in groups of {}", name_of(a.op), a.batch, a.group);
  need_view(a.op, "y", a.y, DType::f32, {a.batch, a.count});
  need_view(a.op, "x", a.x, a.x.type == DType::u8 ? DType::u8 : DType::f32, {a.batch, a.count});
  need_view(a.op, "shares", a.shares, DType::f32, {a.batch});
  allow_view(a.op, "boxes", a.boxes, DType::i32, {a.batch, 4});
  CHECK(
      a.boxes.none() || (a.row_values > 0 && a.row_values % 3 == 0 && a.count % a.row_values == 0),
      "{}: rows of {} values do not cut an image of {}", name_of(a.op), a.row_values, a.count);
  CHECK(a.range.valid(), "{}: the range of bytes has no width", name_of(a.op));
}

Cost cost(const MixImages& a) {
  return {3 * a.y.count, a.y.bytes() + 2 * a.x.bytes() + a.shares.bytes() + a.boxes.bytes()};
}

}  // namespace kernels
