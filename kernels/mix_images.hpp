// SPDX-License-Identifier: Apache-2.0
// Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899): each image becomes a blend with another
// one of the batch, or gets a box of it.
#pragma once

#include "kernels/check_views.hpp"
#include "kernels/patchify.hpp"

namespace kernels {

// The example of its group that an example is mixed with (mix_partner).
enum class MixPartner {
  previous,  // the one before it; for the first one, the last one
  mirrored,  // the one at the same distance from the group's other end
};

// y[b] = shares[b] * x[b] + (1 - shares[b]) * x[partner(b)], each operation rounded. Within
// boxes[b], y[b] = x[partner(b)]. Bytes are scaled first, as in Patchify.
struct MixImages {
  static constexpr Op op = Op::mix_images;
  View y;       // [batch, count]
  View x;       // f32 or u8 [batch, count]
  View shares;  // [batch]
  int64_t batch = 0, count = 0;
  int64_t group = 2;   // examples of a group; divides the batch
  PixelRange range{};  // of bytes
  MixPartner partner = MixPartner::previous;
  // Optional i32 [batch, 4]: first row, row after the last, first column, column after the last of
  // an image [count / row_values, row_values / 3, 3]. A box may be empty.
  View boxes{};
  int64_t row_values = 0;  // values of a row of pixels; with boxes
};

// Returns the partner of an example within its group of consecutive examples.
constexpr int64_t mix_partner(int64_t example, int64_t group,
                              MixPartner partner = MixPartner::previous) {
  const int64_t place = example % group;
  if (partner == MixPartner::mirrored) return example + group - 1 - 2 * place;
  return place ? example - 1 : example + group - 1;
}

inline void check(const MixImages& a) {
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

inline Cost cost(const MixImages& a) {
  return {3 * a.y.count, a.y.bytes() + 2 * a.x.bytes() + a.shares.bytes() + a.boxes.bytes()};
}

}  // namespace kernels
