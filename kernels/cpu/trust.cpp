// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the ratios of LARC and LARS.
#include "kernels/trust.hpp"

#include "kernels/cpu/update_loop.hpp"

namespace kernels {

void run_cpu(const TrustSums& a, Queue& queue) {
  using namespace loops;
  const int64_t count = a.weights.count, blocks = base::ceil_div(count, kUpdateBlock);
  const float *weights = a.weights.f32(), *gradient = a.gradient.f32();
  const Clip::Numbers clip = a.clip.numbers();
  const InnerDecay::Numbers inner{a.decay, 1};
  auto* partial = static_cast<double*>(queue.scratch(size_t(2 * blocks) * sizeof(double)));
#pragma omp parallel for schedule(static) num_threads(queue.threads()) if (blocks > 1)
  for (int64_t b = 0; b < blocks; ++b) {
    alignas(64) float scaled[kUpdateChunk];
    double of_weights = 0, of_gradient = 0;
    const int64_t end = std::min(count, (b + 1) * kUpdateBlock);
    for (int64_t at = b * kUpdateBlock; at < end; at += kUpdateChunk) {
      const int64_t n = std::min(kUpdateChunk, end - at);
      of_weights += square_sum(weights + at, n);
      if (!clip.apply) continue;
      const float* g = clipped(gradient + at, clip.divisor, clip.factor, n, scaled);
      of_gradient += square_sum(with_inner_decay(g, weights + at, inner, n, scaled), n);
    }
    partial[b] = of_weights;
    partial[blocks + b] = of_gradient;
  }
  a.sums.f64()[0] = plain_sum(partial, blocks);
  a.sums.f64()[1] = plain_sum(partial + blocks, blocks);
}

void run_cpu(const TrustRatio& a, Queue&) {
  const TrustNumbers n = trust_of(a.rule, std::sqrt(a.sums.f64()[0]), std::sqrt(a.sums.f64()[1]),
                                  double(a.coefficient), double(a.eps), a.decay, double(a.limit));
  a.trust.f32()[0] = n.ratio;
  a.trust.f32()[1] = n.decay;
}

}  // namespace kernels
