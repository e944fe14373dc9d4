// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the decision about clipping.
#include "kernels/clip_gradient.hpp"
#include "kernels/cuda/launch.cuh"

namespace kernels {
namespace {

// A single block runs. All threads load, and one adds in the order of the CPU.
constexpr int kClipThreads = 256;
struct ClipArgs {
  const double* squares;
  const int32_t* places;
  int64_t count;
  const double* must_be_finite;
  int64_t finite_count;
  const double* largest;
  int64_t largest_count;
  float bound, drop;
  double *norm, *found;  // found: may be null
  float* decision;
};

__global__ void __launch_bounds__(kClipThreads) decide_clip(ClipArgs a) {
  __shared__ double fetched[kClipThreads];
  double total = 0;
  for (int64_t begin = 0; begin < a.count; begin += kClipThreads) {
    const int64_t i = begin + threadIdx.x;
    if (i < a.count) {
      fetched[threadIdx.x] = a.squares[a.places[i]];
      if (a.found) a.found[i] = fetched[threadIdx.x];
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int64_t k = 0; k < kClipThreads && begin + k < a.count; ++k) total += fetched[k];
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const double root = sqrt(total);
  const auto size = float(size_of_gradient(root, a.largest, a.largest_count));
  const bool clipped = a.bound > 0 && !(size < a.bound);
  bool finite = root < INFINITY;
  for (int64_t i = 0; i < a.finite_count; ++i)
    finite = finite && fabs(a.must_be_finite[i]) < INFINITY;
  *a.norm = root;
  a.decision[0] = clipped ? size : 1;
  a.decision[1] = clipped ? a.bound : 1;
  a.decision[2] = finite && (a.drop == 0 || size < a.drop) ? 1 : 0;
}

}  // namespace

void run_cuda(const ClipGradient& a, Queue& queue) {
  const ClipArgs args{.squares = a.squares.f64(),
                      .places = a.places.i32(),
                      .count = a.places.count,
                      .must_be_finite = numbers_of(a.must_be_finite),
                      .finite_count = a.must_be_finite.count,
                      .largest = numbers_of(a.largest),
                      .largest_count = a.largest.count,
                      .bound = a.bound,
                      .drop = a.drop,
                      .norm = a.norm.f64(),
                      .found = a.found.none() ? nullptr : a.found.f64(),
                      .decision = a.decision.f32()};
  launch(decide_clip, dim3(1), dim3(kClipThreads), 0, queue, args);
}

}  // namespace kernels
