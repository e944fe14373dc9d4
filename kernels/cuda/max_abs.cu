// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the largest absolute value: one block for each tensor.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/many.cuh"
#include "kernels/max_abs.hpp"

namespace kernels {
namespace {

constexpr int kMaxThreads = 1024;
struct MaxItem {
  const float* x;
  int64_t count;
  double* largest;
};

__global__ void __launch_bounds__(kMaxThreads)
    max_of_tensor(const ManyItems<MaxItem> __grid_constant__ all) {
  __shared__ BlockShared<float> shared;
  const MaxItem& a = all.items[share_of_block(all).item];
  float largest = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < a.count; i += kMaxThreads) {
    const float size = fabsf(a.x[i]);
    largest = size > largest ? size : largest;
  }
  largest = block_max(largest, shared);
  if (threadIdx.x == 0) *a.largest = double(largest);
}

}  // namespace

void run_cuda(std::span<const MaxAbs> all, Queue& queue) {
  ManyLaunch tensors(max_of_tensor, kMaxThreads, queue);
  for (const MaxAbs& a : all) tensors.add({a.x.f32(), a.x.count, a.largest.f64()}, 1);
  tensors.start();
}

}  // namespace kernels
