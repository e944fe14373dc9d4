// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the counts of known targets. A thread has a column of a slice.
#include "kernels/cuda/launch.cuh"
#include "kernels/target_counts.hpp"

namespace kernels {
namespace {

constexpr int kCountThreads = 128;

template <class T>
__global__ void __launch_bounds__(kCountThreads)
    count_known(double* counts, const T* values, int64_t rows, int64_t columns) {
  const int64_t c = int64_t(blockIdx.x) * kCountThreads + threadIdx.x, j = int64_t(blockIdx.y);
  if (c >= columns) return;
  double known = 0;
  for (int64_t r = j * rows; r < (j + 1) * rows; ++r) known += values[r * columns + c] >= 0 ? 1 : 0;
  counts[j * columns + c] = known;
}

__global__ void __launch_bounds__(kCountThreads)
    weigh(float* weights, const double* counts, const float* factor, int64_t columns,
          double examples) {
  const int64_t c = int64_t(blockIdx.x) * kCountThreads + threadIdx.x;
  if (c < columns) weights[c] = count_weight(counts[c], examples, factor ? *factor : 1);
}

}  // namespace

void run_cuda(const TargetCounts& a, Queue& queue) {
  const dim3 grid(blocks_for(a.columns, kCountThreads).x, unsigned(a.slices));
  const int64_t rows = a.rows / a.slices;
  if (a.values.type == DType::i32)
    launch(count_known<int32_t>, grid, dim3(kCountThreads), 0, queue, a.counts.f64(),
           a.values.i32(), rows, a.columns);
  else
    launch(count_known<float>, grid, dim3(kCountThreads), 0, queue, a.counts.f64(), a.values.f32(),
           rows, a.columns);
}

void run_cuda(const CountWeights& a, Queue& queue) {
  launch(weigh, blocks_for(a.columns, kCountThreads), dim3(kCountThreads), 0, queue,
         a.weights.f32(), a.counts.f64(), a.factor.none() ? nullptr : a.factor.f32(), a.columns,
         a.examples);
}

}  // namespace kernels
