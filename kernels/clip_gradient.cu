#include "kernels/clip_gradient.hpp"
#include "kernels/launch.cuh"

namespace kernels {
namespace {

// One block: all threads fetch, one adds, in the order of the CPU.
constexpr int kClipThreads = 256;
__global__ void __launch_bounds__(kClipThreads) decide_clip(const double* squares, const int32_t* places, int64_t count,
                                                            float bound, double* norm, float* decision) {
  __shared__ double fetched[kClipThreads];
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kClipThreads) {
    const int64_t i = begin + threadIdx.x;
    if (i < count) fetched[threadIdx.x] = squares[places[i]];
    __syncthreads();
    if (threadIdx.x == 0)
      for (int64_t k = 0; k < kClipThreads && begin + k < count; ++k) total += fetched[k];
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const double root = sqrt(total);
  const bool clipped = bound > 0 && !(float(root) < bound);
  *norm = root;
  decision[0] = clipped ? float(root) : 1, decision[1] = clipped ? bound : 1, decision[2] = root < INFINITY ? 1 : 0;
}

}  // namespace

void run_cuda(const ClipGradient& a, Queue& queue) {
  launch(decide_clip, dim3(1), dim3(kClipThreads), 0, queue, a.squares.f64(), a.places.i32(), a.places.count, a.bound,
         a.norm.f64(), a.decision.f32());
}

}  // namespace kernels
