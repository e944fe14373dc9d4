// The kernel behind the update ops: like update_loop.hpp, one pass in which the optimizer's rule, the update and both
// norms read memory once. Element values are those of the CPU: every product that feeds a sum is an explicit fma.
#pragma once

#include "base/narrow.hpp"
#include "kernels/apply_update.hpp"
#include "kernels/block.cuh"
#include "kernels/floats.cuh"
#include "kernels/partial_sums.cuh"

namespace kernels {

constexpr int kUpdateThreads = 256, kUpdatePack = 4;
constexpr int64_t kUpdateCudaBlock = 4096;  // elements of a block

// The gradient as clipping leaves it. A kernel calls `decide` first.
struct ClippedGradient {
  const float* gradient;
  float divisor, factor;
  const float* decided;  // may be null
  bool apply = true;

  ClippedGradient(const View& g, const Clip& clip)
      : gradient(g.f32()),
        divisor(clip.divisor),
        factor(clip.factor),
        decided(clip.decided.none() ? nullptr : clip.decided.f32()) {}
  __device__ void decide() {
    if (decided) divisor = decided[0], factor = decided[1], apply = decided[2] != 0;
  }
  template <bool kAligned, int N>
  __device__ Floats<N> at(int64_t i) const {
    Floats<N> g = load<kAligned, N>(gradient + i, N);
    if (divisor == 1 && factor == 1) return g;
#pragma unroll
    for (int k = 0; k < N; ++k) g[k] = g[k] / divisor * factor;
    return g;
  }
};

// Sums of this thread's squares, and f.step<kAligned, N>(i) for each pack of the block's elements.
template <bool kAligned, class F>
__device__ void for_update_packs(int64_t count, F& f) {
  const int64_t begin = int64_t(blockIdx.x) * kUpdateCudaBlock;
  const int64_t end = begin + kUpdateCudaBlock < count ? begin + kUpdateCudaBlock : count;
  for (int64_t i = begin + int64_t(threadIdx.x) * kUpdatePack; i < end; i += kUpdateThreads * kUpdatePack) {
    if (kAligned && i + kUpdatePack <= end) {
      f.template step<kUpdatePack>(i);
    } else {
      for (int64_t j = i; j < end && j < i + kUpdatePack; ++j) f.template step<1>(j);
    }
  }
}

template <int N>
__device__ inline void add_squares(double& sum, const Floats<N>& x) {
#pragma unroll
  for (int k = 0; k < N; ++k) sum = fma(double(x[k]), double(x[k]), sum);
}

// u = -schedule * (rate * d + decay * w), w += u.
template <class Direction>
struct UpdateStep {
  float* weights;
  ClippedGradient gradient;
  float rate, decay, negative_schedule;
  Direction direction;
  double of_weights, of_updates;

  template <int N>
  __device__ void step(int64_t i) {
    Floats<N> w = load<true, N>(weights + i, N);
    if (!gradient.apply) return add_squares(of_weights, w);
    Floats<N> u = direction.template of<N>(i, gradient.at<true, N>(i));
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float wanted = fmaf(decay, w[k], rate * u[k]);
      u[k] = negative_schedule * wanted;
      w[k] = fmaf(negative_schedule, wanted, w[k]);
    }
    store<true>(weights + i, w, N);
    add_squares(of_weights, w);
    add_squares(of_updates, u);
  }
};

template <bool kAligned, class Direction>
__global__ void __launch_bounds__(kUpdateThreads, 4)
    update_blocks(UpdateStep<Direction> step, int64_t count, double* partial) {
  __shared__ BlockShared<double> shared;
  step.gradient.decide();
  if constexpr (requires { step.direction.decide(); }) step.direction.decide();
  step.of_weights = 0, step.of_updates = 0;
  for_update_packs<kAligned>(count, step);
  const double of_weights = block_sum(step.of_weights, shared), of_updates = block_sum(step.of_updates, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = of_weights, partial[gridDim.x + blockIdx.x] = of_updates;
}

// direction.of<N>(i, g) = the optimizer's direction for the elements [i, i + N) of the view with clipped gradients g;
// before, direction.decide() reads what it depends on from memory, if there is such a thing. It moves its own state, whose
// `views` may be packed as the weights are if they are aligned.
template <class Direction>
void update_elements(const Update& a, std::initializer_list<View> views, const Direction& direction, Queue& queue) {
  const int64_t count = a.count(), blocks = base::ceil_div(count, kUpdateCudaBlock);
  const DoublePartials partial(a.sums, blocks, 2, queue);
  const UpdateStep<Direction> step{
      a.weights.f32(), {a.gradient, a.clip}, a.rate, a.decay, -a.schedule, direction, 0, 0};
  const bool aligned = packs_fit(kUpdatePack, 0, {a.weights, a.gradient}) && packs_fit(kUpdatePack, 0, views);
  auto* kernel = aligned ? update_blocks<true, Direction> : update_blocks<false, Direction>;
  launch(kernel, blocks_for(blocks, 1), dim3(kUpdateThreads), 0, queue, step, count, partial.data());
  partial.add(queue);
}

}  // namespace kernels
