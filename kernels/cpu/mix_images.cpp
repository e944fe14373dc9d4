// SPDX-License-Identifier: Apache-2.0
// CPU implementation of mixup.
#include "kernels/mix_images.hpp"

#include <algorithm>

#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

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
      const int64_t own = b * a.count, other = mix_partner(b, a.group) * a.count;
      float* y = a.y.f32() + own;
      for (int64_t k = first; k < last; ++k)
        y[k] = share * value(own + k) + rest * value(other + k);
    }
  });
}

}  // namespace

void run_cpu(const MixImages& a, Queue& queue) {
  if (a.x.type == DType::f32) return mix(a, queue, [x = a.x.f32()](int64_t i) { return x[i]; });
  mix(a, queue, [x = a.x.u8(), r = a.range](int64_t i) {
    return r.to_low + (float(x[i]) - r.low) / r.width * r.to_width;
  });
}

}  // namespace kernels
