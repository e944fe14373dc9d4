// SPDX-License-Identifier: Apache-2.0
// The kernel of all update ops. The optimizer's rule, the update and both norms read memory once,
// as in cpu/update_loop.hpp. One launch serves many tensors. Elements get the CPU's values,
// because every product that feeds a sum is an explicit fma.
#pragma once

#include "base/narrow.hpp"
#include "kernels/apply_update.hpp"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/partial_sums.cuh"

namespace kernels {

constexpr int kUpdateThreads = 256, kUpdatePack = 4;

// A gradient that is clipped as it is read. A kernel calls `decide` first.
struct ClippedGradient {
  const float* gradient;
  float divisor, factor;
  const float* decided;  // may be null
  bool apply;

  static ClippedGradient of(const View& g, const Clip& clip) {
    return {g.f32(), clip.divisor, clip.factor, clip.decided.none() ? nullptr : clip.decided.f32(),
            true};
  }
  __device__ void decide() {
    if (decided) {
      divisor = decided[0];
      factor = decided[1];
      apply = decided[2] != 0;
    }
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

// InnerDecay in a kernel, which calls `decide` first.
struct DecayedGradient {
  float decay, ratio;
  const float* trust;  // may be null

  static DecayedGradient of(const InnerDecay& a) {
    return {a.decay, a.ratio, a.trust.none() ? nullptr : a.trust.f32()};
  }
  __device__ void decide() {
    if (trust) {
      ratio = trust[0];
      decay = trust[1];
    }
  }
  template <int N>
  __device__ Floats<N> of(Floats<N> g, const Floats<N>& w) const {
    if (decay == 0 && ratio == 1) return g;
#pragma unroll
    for (int k = 0; k < N; ++k) g[k] = fmaf(decay, w[k], g[k]) * ratio;
    return g;
  }
};

// Calls f.step<N>(i) for this thread's packs of the elements of a tensor's block.
template <bool kAligned, class F>
__device__ void for_update_packs(uint32_t block, int64_t count, F& f) {
  const int64_t begin = int64_t(block) * kUpdateCudaBlock;
  const int64_t end = begin + kUpdateCudaBlock < count ? begin + kUpdateCudaBlock : count;
  for (int64_t i = begin + int64_t(threadIdx.x) * kUpdatePack; i < end;
       i += kUpdateThreads * kUpdatePack) {
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

// A tensor in the argument of the launch. Its update is u = -schedule * (rate * d + decay * w),
// then w += u.
template <class Direction>
struct UpdateItem {
  float* weights;
  ClippedGradient gradient;
  DecayedGradient inner;
  float rate, decay, negative_schedule;
  Direction direction;
  int64_t count;
  double *weight_squares, *update_squares;  // sums of squares of each block
};

// The work of one thread, and its sums of squares.
template <class Direction>
struct UpdateStep {
  UpdateItem<Direction> a;
  double weight_squares, update_squares;

  template <int N>
  __device__ void step(int64_t i) {
    Floats<N> w = load<true, N>(a.weights + i, N);
    if (!a.gradient.apply) return add_squares(weight_squares, w);
    const Floats<N> g = a.inner.template of<N>(a.gradient.template at<true, N>(i), w);
    Floats<N> u = a.direction.template of<N>(i, g);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float wanted = fmaf(a.decay, w[k], a.rate * u[k]);
      u[k] = a.negative_schedule * wanted;
      w[k] = fmaf(a.negative_schedule, wanted, w[k]);
    }
    store<true>(a.weights + i, w, N);
    add_squares(weight_squares, w);
    add_squares(update_squares, u);
  }
};

// Three blocks per multiprocessor keep its memory busy and leave registers to describe the tensor.
template <bool kAligned, class Direction>
__global__ void __launch_bounds__(kUpdateThreads, 3)
    update_blocks(const ManyItems<UpdateItem<Direction>> __grid_constant__ all) {
  __shared__ BlockShared<double> shared;
  const Share share = share_of_block(all);
  UpdateStep<Direction> step{all.items[share.item], 0, 0};
  step.a.gradient.decide();
  step.a.inner.decide();
  if constexpr (requires { step.a.direction.decide(); }) step.a.direction.decide();
  for_update_packs<kAligned>(share.block, step.a.count, step);
  const double weight_squares = block_sum(step.weight_squares, shared),
               update_squares = block_sum(step.update_squares, shared);
  if (threadIdx.x == 0) {
    step.a.weight_squares[share.block] = weight_squares;
    step.a.update_squares[share.block] = update_squares;
  }
}

inline DoublePartials partials_of(const Update& a, double*& scratch) {
  return DoublePartials::of(a.sums, base::ceil_div(a.count(), kUpdateCudaBlock), scratch);
}

// Runs the ops for which Direction::is_for is true. All ops in `some` share the scratch.
template <class Direction, class Args>
void update_with(std::span<const Args> some, double* scratch, Queue& queue) {
  ManyLaunch aligned(update_blocks<true, Direction>, kUpdateThreads, queue);
  ManyLaunch other(update_blocks<false, Direction>, kUpdateThreads, queue);
  for (const Args& args : some) {
    const Update& a = args.update;
    const DoublePartials p = partials_of(a, scratch);
    if (!Direction::is_for(args)) continue;
    const bool fits =
        packs_fit(kUpdatePack, 0, {a.weights, a.gradient}) && Direction::packs_fit_state(args);
    (fits ? aligned : other)
        .add({a.weights.f32(), ClippedGradient::of(a.gradient, a.clip),
              DecayedGradient::of(a.inner), a.rate, a.decay, -a.schedule, Direction::of(args),
              a.count(), p.data, p.data + p.blocks},
             p.blocks);
  }
  aligned.start();
  other.start();
}

// Updates each op with the one of the Directions for which is_for(op) is true. A direction has:
//   of<N>(i, g)          returns the direction of elements [i, i + N) with clipped gradients g
//                        and updates its own state
//   decide()             reads values that it depends on from memory, before of<N>; optional
//   of(op)               makes it, on the host
//   is_for(op)           true if it serves this op, on the host
//   packs_fit_state(op)  true if state may be moved in packs, on the host
template <class... Directions, class Args>
void update_all(std::span<const Args> all, Queue& queue) {
  for_shared_scratch(all, [&](std::span<const Args> some, size_t bytes) {
    auto* scratch = static_cast<double*>(queue.scratch(bytes));
    (update_with<Directions>(some, scratch, queue), ...);
    add_partials_of(some, scratch, queue,
                    [](const Args& a, double*& at) { return partials_of(a.update, at); });
  });
}

}  // namespace kernels
