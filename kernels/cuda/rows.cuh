// SPDX-License-Identifier: Apache-2.0
// Loops over rows of elements. A warp has 32 neighbouring packs of one row.
#pragma once

#include "kernels/cuda/floats.cuh"

namespace kernels {

constexpr int kRowsPerBlock = 4;

template <bool kAligned, int N, class Body>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp)
    each_row(Body body, int64_t rows, int64_t width) {
  const int64_t row = int64_t(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarp;
  const int64_t column = (int64_t(blockIdx.y) * kWarp + threadIdx.x % kWarp) * N;
  if (row < rows && column < width) body.template run<kAligned, N>(row, column, width - column);
}

// Calls body.run<kAligned, N>(row, column, left) for the elements [column, column + min(N, left))
// of every row. kAligned is `aligned` (packs_fit). If it is true, left >= N, and a pack of each
// tensor begins at the column.
template <int N, class Body>
void for_each_row(const Body& body, int64_t rows, int64_t width, bool aligned, Queue& queue) {
  const dim3 grid(blocks_for(rows, kRowsPerBlock).x, blocks_for(width, kWarp * N).x),
      block(kRowsPerBlock * kWarp);
  if (aligned)
    launch(each_row<true, N, Body>, grid, block, 0, queue, body, rows, width);
  else
    launch(each_row<false, N, Body>, grid, block, 0, queue, body, rows, width);
}

}  // namespace kernels
