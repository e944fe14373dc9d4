// SPDX-License-Identifier: Apache-2.0
// Second stage of sums over many blocks, for floats and for doubles.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_shapes.hpp"
#include "kernels/cuda/partial_sums.cuh"

namespace kernels {
namespace {

constexpr int kGroups = 16;  // groups of blocks that are summed in parallel

__global__ void __launch_bounds__(kWarp* kGroups)
    add_float_partials(float* out, const float* partial, int64_t blocks, int64_t stride,
                       int64_t columns, bool add) {
  __shared__ float sums[kGroups][kWarp];
  int64_t j = int64_t(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (j < columns)
    for (int64_t b = threadIdx.y; b < blocks; b += kGroups) sum += partial[b * stride + j];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= columns) return;
  float total = add ? out[j] : 0;
  for (int g = 0; g < kGroups; ++g) total += sums[g][threadIdx.x];
  out[j] = total;
}

}  // namespace

__global__ void __launch_bounds__(kSumThreads)
    add_double_partials(const ManyItems<DoublePartials> __grid_constant__ all) {
  __shared__ BlockShared<double> shared;
  const Share share = share_of_block(all);
  const DoublePartials& p = all.items[share.item];
  double sum = 0;
  for (int64_t b = threadIdx.x; b < p.blocks; b += kSumThreads)
    sum += p.data[share.block * p.blocks + b];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) p.out[share.block] = sum;
}

void add_partials(float* out, const float* partial, int64_t blocks, int64_t stride, int64_t columns,
                  Write write, Queue& queue) {
  launch(add_float_partials, blocks_for(columns, kWarp), dim3(kWarp, kGroups), 0, queue, out,
         partial, blocks, stride, columns, write == Write::accumulate);
}

}  // namespace kernels
