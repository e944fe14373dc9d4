// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of sums over the rows of a matrix: blocks of rows are summed in parallel,
// then their sums are added in order.
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/partial_sums.cuh"
#include "kernels/gemm.hpp"

namespace kernels {
namespace {

constexpr int kSumPack = 4, kColumnTurns = 8,
              kColumnWidth = kWarp * kSumPack;  // a warp's lanes beside each other

// partial[block of rows][n] = the sums over each block's rows. Threads of one column share the rows
// in turn, and their sums are added in order.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kWarp* kColumnTurns)
    column_sum_blocks(const T* x, int64_t m, int64_t n, int64_t rows_per_block, float* partial) {
  __shared__ float sums[kColumnTurns][kColumnWidth];
  const int64_t column = int64_t(blockIdx.x) * kColumnWidth + threadIdx.x * kSumPack;
  const int64_t first = int64_t(blockIdx.y) * rows_per_block,
                end = first + rows_per_block < m ? first + rows_per_block : m;
  Floats<kSumPack> sum{};
  if (column < n) {
#pragma unroll 4
    for (int64_t row = first + threadIdx.y; row < end; row += kColumnTurns) {
      const Floats<kSumPack> v = load<kAligned, kSumPack>(x + row * n + column, n - column);
#pragma unroll
      for (int i = 0; i < kSumPack; ++i) sum[i] += v[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kSumPack; ++i) sums[threadIdx.y][threadIdx.x * kSumPack + i] = sum[i];
  __syncthreads();
  const int j = int(threadIdx.y) * kWarp + int(threadIdx.x);
  if (j >= kColumnWidth || int64_t(blockIdx.x) * kColumnWidth + j >= n) return;
  float total = 0;
  for (int t = 0; t < kColumnTurns; ++t) total += sums[t][j];
  partial[int64_t(blockIdx.y) * n + int64_t(blockIdx.x) * kColumnWidth + j] = total;
}

template <class T>
void sum_columns(const ColumnSum& a, Queue& queue) {
  const RowCuts cuts = column_sum_cuts(a.m);
  auto* partial = static_cast<float*>(queue.scratch(cuda_scratch(a)));
  const dim3 grid(blocks_for(a.n, kColumnWidth).x, unsigned(cuts.count())),
      block(kWarp, kColumnTurns);
  const T* x = static_cast<const T*>(a.x.data);
  if (packs_fit(kSumPack, a.n, {a.x}))
    launch(column_sum_blocks<true, T>, grid, block, 0, queue, x, a.m, a.n, cuts.block, partial);
  else
    launch(column_sum_blocks<false, T>, grid, block, 0, queue, x, a.m, a.n, cuts.block, partial);
  add_partials(a.out.f32(), partial, cuts.count(), a.n, a.n, a.write, queue);
}

}  // namespace

void run_cuda(const ColumnSum& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) { sum_columns<decltype(element)>(a, queue); });
}

}  // namespace kernels
