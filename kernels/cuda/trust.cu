// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the ratios of LARC and LARS.
#include "kernels/cuda/update_loop.cuh"
#include "kernels/trust.hpp"

namespace kernels {
namespace {

struct TrustItem {
  const float* weights;
  ClippedGradient gradient;
  DecayedGradient inner;
  int64_t count;
  double *of_weights, *of_gradient;  // sums of squares of each block
};

struct TrustStep {
  TrustItem a;
  double of_weights, of_gradient;
  template <int N>
  __device__ void step(int64_t i) {
    const Floats<N> w = load<true, N>(a.weights + i, N);
    add_squares(of_weights, w);
    if (a.gradient.apply)
      add_squares(of_gradient, a.inner.template of<N>(a.gradient.template at<true, N>(i), w));
  }
};

template <bool kAligned>
__global__ void __launch_bounds__(kUpdateThreads, 4)
    trust_blocks(const ManyItems<TrustItem> __grid_constant__ all) {
  __shared__ BlockShared<double> shared;
  const Share share = share_of_block(all);
  TrustStep step{all.items[share.item], 0, 0};
  step.a.gradient.decide();
  for_update_packs<kAligned>(share.block, step.a.count, step);
  const double of_weights = block_sum(step.of_weights, shared),
               of_gradient = block_sum(step.of_gradient, shared);
  if (threadIdx.x == 0) {
    step.a.of_weights[share.block] = of_weights;
    step.a.of_gradient[share.block] = of_gradient;
  }
}

DoublePartials partials_of_trust(const TrustSums& a, double*& scratch) {
  return DoublePartials::of(a.sums, base::ceil_div(a.weights.count, kUpdateCudaBlock), scratch);
}

struct RatioItem {
  float* trust;
  const double* sums;
  Trust rule;
  float coefficient, eps, decay, limit;
};

// A block has a tensor: there are few numbers per tensor, and few tensors.
constexpr int kRatioThreads = 32;
__global__ void __launch_bounds__(kRatioThreads)
    trust_ratios(const ManyItems<RatioItem> __grid_constant__ all) {
  if (threadIdx.x != 0) return;
  const RatioItem& a = all.items[share_of_block(all).item];
  const TrustNumbers n = trust_of(a.rule, sqrt(a.sums[0]), sqrt(a.sums[1]), double(a.coefficient),
                                  double(a.eps), a.decay, double(a.limit));
  a.trust[0] = n.ratio;
  a.trust[1] = n.decay;
}

}  // namespace

void run_cuda(std::span<const TrustSums> all, Queue& queue) {
  for_shared_scratch(all, [&](std::span<const TrustSums> some, size_t bytes) {
    auto* scratch = static_cast<double*>(queue.scratch(bytes));
    ManyLaunch aligned(trust_blocks<true>, kUpdateThreads, queue),
        other(trust_blocks<false>, kUpdateThreads, queue);
    double* at = scratch;
    for (const TrustSums& a : some) {
      const DoublePartials p = partials_of_trust(a, at);
      (packs_fit(kUpdatePack, 0, {a.weights, a.gradient}) ? aligned : other)
          .add(
              {a.weights.f32(), ClippedGradient::of(a.gradient, a.clip),
               DecayedGradient::of({.decay = a.decay}), a.weights.count, p.data, p.data + p.blocks},
              p.blocks);
    }
    aligned.start();
    other.start();
    add_partials_of(some, scratch, queue, partials_of_trust);
  });
}

void run_cuda(std::span<const TrustRatio> all, Queue& queue) {
  ManyLaunch ratios(trust_ratios, kRatioThreads, queue);
  for (const TrustRatio& a : all)
    ratios.add({a.trust.f32(), a.sums.f64(), a.rule, a.coefficient, a.eps, a.decay, a.limit}, 1);
  ratios.start();
}

}  // namespace kernels
