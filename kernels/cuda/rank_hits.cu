// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the hits among the first classes. A launch has a count, a thread a row.
#include "kernels/cuda/launch.cuh"
#include "kernels/rank_hits.hpp"

namespace kernels {
namespace {

constexpr int kHitThreads = 256;

__global__ void __launch_bounds__(kHitThreads)
    find_hits(float* hits, const int32_t* ranks, int64_t rows, int32_t k) {
  const int64_t r = int64_t(blockIdx.x) * kHitThreads + threadIdx.x;
  if (r < rows) hits[r] = ranks[r] < k ? 1.0f : 0.0f;
}

}  // namespace

void run_cuda(const RankHits& a, Queue& queue) {
  for (int64_t j = 0; j < a.count; ++j)
    launch(find_hits, blocks_for(a.rows, kHitThreads), dim3(kHitThreads), 0, queue,
           a.hits.f32() + j * a.rows, a.ranks.i32(), a.rows, a.k[size_t(j)]);
}

}  // namespace kernels
