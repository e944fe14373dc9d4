// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of sums over examples. One thread adds the examples of a slice in order; a
// pass has few of them.
#include "kernels/cuda/launch.cuh"
#include "kernels/example_sums.hpp"

namespace kernels {
namespace {

constexpr int kColumnThreads = 128;
struct SumArgs {
  double* sums;
  const float* values;
  int64_t batch, columns, slices;
};

__global__ void __launch_bounds__(kColumnThreads) sum_columns(SumArgs a) {
  const int64_t at = int64_t(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (at >= a.slices * a.columns) return;
  const int64_t j = at / a.columns, c = at % a.columns, examples = a.batch / a.slices;
  const float* values = a.values + c * a.batch + j * examples;
  double sum = 0;
  for (int64_t i = 0; i < examples; ++i) sum += double(values[i]);
  a.sums[at] = sum;
}

}  // namespace

void run_cuda(const ExampleSums& a, Queue& queue) {
  const SumArgs args{a.sums.f64(), a.values.f32(), a.batch, a.columns, a.slices};
  launch(sum_columns, blocks_for(a.slices * a.columns, kColumnThreads), dim3(kColumnThreads), 0,
         queue, args);
}

}  // namespace kernels
