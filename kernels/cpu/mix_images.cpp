// SPDX-License-Identifier: Apache-2.0
// CPU implementation of mixup.
#include "kernels/mix_images.hpp"

#include <algorithm>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/pixel_table.hpp"

namespace kernels {
namespace {

// Writes the part of a box of the partner that is within the values [first, last) of an image.
template <class Value>
void paste(const MixImages& a, const int32_t* box, float* y, int64_t other, int64_t first,
           int64_t last, const Value& value) {
  for (int64_t row = box[0]; row < box[1]; ++row) {
    const int64_t begin = std::max(first, row * a.row_values + 3 * int64_t(box[2])),
                  end = std::min(last, row * a.row_values + 3 * int64_t(box[3]));
    for (int64_t k = begin; k < end; ++k) y[k] = value(other, k);
  }
}

// value(begin, k): value k of the image that begins there.
template <class Value>
void mix(const MixImages& a, Queue& queue, const Value& value) {
  // Images are cut into pieces, so that all threads have work if there are few examples.
  constexpr int64_t kPiece = 4096;
  const int64_t pieces = (a.count + kPiece - 1) / kPiece;
  for_ranges(queue, a.batch * pieces, a.y.count, 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const int64_t b = i / pieces, first = i % pieces * kPiece,
                    last = std::min(a.count, first + kPiece);
      const float share = a.shares.f32()[b], rest = 1 - share;
      const int64_t own = b * a.count, other = mix_partner(b, a.group, a.partner) * a.count;
      float* y = a.y.f32() + own;
      for (int64_t k = first; k < last; ++k) y[k] = share * value(own, k) + rest * value(other, k);
      if (!a.boxes.none()) paste(a, a.boxes.i32() + 4 * b, y, other, first, last, value);
    }
  });
}

}  // namespace

void run_cpu(const MixImages& a, Queue& queue) {
  if (a.x.type == DType::f32)
    return mix(a, queue, [x = a.x.f32()](int64_t begin, int64_t k) { return x[begin + k]; });
  const PixelTable table(a.range);
  mix(a, queue, [x = a.x.u8(), &table](int64_t begin, int64_t k) {
    return table.value[k % 3][x[begin + k]];
  });
}

}  // namespace kernels
