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
  float bound;
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
  const bool clipped = a.bound > 0 && !(float(root) < a.bound);
  bool finite = root < INFINITY;
  for (int64_t i = 0; i < a.finite_count; ++i)
    finite = finite && fabs(a.must_be_finite[i]) < INFINITY;
  *a.norm = root;
  a.decision[0] = clipped ? float(root) : 1;
  a.decision[1] = clipped ? a.bound : 1;
  a.decision[2] = finite ? 1 : 0;
}

}  // namespace

void run_cuda(const ClipGradient& a, Queue& queue) {
  const ClipArgs args{
      a.squares.f64(),        a.places.i32(),
      a.places.count,         a.must_be_finite.none() ? nullptr : a.must_be_finite.f64(),
      a.must_be_finite.count, a.bound,
      a.norm.f64(),           a.found.none() ? nullptr : a.found.f64(),
      a.decision.f32()};
  launch(decide_clip, dim3(1), dim3(kClipThreads), 0, queue, args);
}

}  // namespace kernels
