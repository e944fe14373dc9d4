// SPDX-License-Identifier: Apache-2.0
// The loop of all update ops. Blocks of fixed size are divided among threads. A block runs in
// chunks that stay in the first-level cache, so the optimizer's rule, the update and both norms
// read memory once. Only the optimizer's ops include this file.
//
// Values do not depend on the borders of blocks. Every product that feeds a sum is an explicit
// std::fma, so the vector body and the tail of a loop round alike.
#pragma once

#include <algorithm>

#include "base/fused.hpp"
#include "base/narrow.hpp"
#include "kernels/apply_update.hpp"
#include "kernels/cpu/square_sum_loop.hpp"

namespace kernels::loops {

constexpr int64_t kUpdateBlock = 16384;
constexpr int64_t kUpdateChunk = 512;

// Returns the gradient after clipping: itself, or a scaled copy in `buffer`.
inline const float* clipped(const float* gradient, float divisor, float factor, int64_t n,
                            float* buffer) {
  if (divisor == 1 && factor == 1) return gradient;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) buffer[i] = gradient[i] / divisor * factor;
  return buffer;
}

// Returns (g + decay * w) * ratio, in `buffer`, which may be g.
inline const float* with_inner_decay(const float* g, const float* w,
                                     const InnerDecay::Numbers& inner, int64_t n, float* buffer) {
  if (!inner.changes()) return g;
  const float decay = inner.decay, ratio = inner.ratio;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) buffer[i] = base::fused(decay, w[i], g[i]) * ratio;
  return buffer;
}

// u = -schedule * (rate * d + decay * w), then w += u. `d` becomes u.
inline void apply_chunk(const Update& a, float* __restrict w, float* __restrict d, int64_t n) {
  const float rate = a.rate, decay = a.decay, negative = -a.schedule;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float wanted = base::fused(decay, w[i], rate * d[i]);
    d[i] = negative * wanted;
    w[i] = base::fused(negative, wanted, w[i]);
  }
}

// Updates all elements. direction(begin, n, g, out) writes the optimizer's directions for elements
// [begin, begin + n) of the view to `out`; g holds their clipped gradients, with inner decay.
template <class Direction>
void update_elements(const Update& a, Queue& queue, Direction direction) {
  const int64_t count = a.count(), blocks = base::ceil_div(count, kUpdateBlock);
  float* weights = a.weights.f32();
  const float* gradient = a.gradient.f32();
  const Clip::Numbers clip = a.clip.numbers();
  const InnerDecay::Numbers inner = a.inner.numbers();
  auto* partial = static_cast<double*>(queue.scratch(size_t(2 * blocks) * sizeof(double)));
#pragma omp parallel for schedule(static) num_threads(queue.threads()) if (blocks > 1)
  for (int64_t b = 0; b < blocks; ++b) {
    alignas(64) float scaled[kUpdateChunk], out[kUpdateChunk];
    double weight_squares = 0, update_squares = 0;
    const int64_t end = std::min(count, (b + 1) * kUpdateBlock);
    for (int64_t at = b * kUpdateBlock; at < end; at += kUpdateChunk) {
      const int64_t n = std::min(kUpdateChunk, end - at);
      if (clip.apply) {
        const float* g = clipped(gradient + at, clip.divisor, clip.factor, n, scaled);
        direction(at, n, with_inner_decay(g, weights + at, inner, n, scaled), out);
        apply_chunk(a, weights + at, out, n);
      } else {
        std::fill(out, out + n, 0.0f);
      }
      weight_squares += square_sum(weights + at, n);
      update_squares += square_sum(out, n);
    }
    partial[b] = weight_squares;
    partial[blocks + b] = update_squares;
  }
  a.sums.f64()[0] = plain_sum(partial, blocks);
  a.sums.f64()[1] = plain_sum(partial + blocks, blocks);
}

}  // namespace kernels::loops
