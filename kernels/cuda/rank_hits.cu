// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the hits among the first classes. A thread has one number.
#include "kernels/cuda/launch.cuh"
#include "kernels/rank_hits.hpp"

namespace kernels {
namespace {

constexpr int kHitThreads = 256;
struct HitArgs {
  float* hits;
  const int32_t* ranks;
  int64_t rows, count;
  int32_t k[RankHits::kMost];
};

__global__ void __launch_bounds__(kHitThreads) find_hits(HitArgs a) {
  const int64_t i = int64_t(blockIdx.x) * kHitThreads + threadIdx.x;
  if (i < a.rows * a.count) a.hits[i] = a.ranks[i % a.rows] < a.k[i / a.rows] ? 1.0f : 0.0f;
}

}  // namespace

void run_cuda(const RankHits& a, Queue& queue) {
  HitArgs args{a.hits.f32(), a.ranks.i32(), a.rows, a.count, {}};
  for (int j = 0; j < RankHits::kMost; ++j) args.k[j] = a.k[size_t(j)];
  launch(find_hits, blocks_for(a.rows * a.count, kHitThreads), dim3(kHitThreads), 0, queue, args);
}

}  // namespace kernels
