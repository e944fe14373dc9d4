// SPDX-License-Identifier: Apache-2.0
// What the kernels of batch norm and group norm share: numbers per column, and loops over the rows
// of groups. A thread has a pack of columns, whose numbers it keeps in registers while it walks
// over rows of one group.
#pragma once

#include "base/narrow.hpp"
#include "kernels/batch_norm.hpp"
#include "kernels/cuda/floats.cuh"

namespace kernels {

template <class T>
T* pointer_of(const View& v) {
  return v.none() ? nullptr : static_cast<T*>(v.data);
}

// ---- numbers of a column
struct ColumnValues {
  const float *mean, *rstd, *scale, *bias;  // scale and bias may be null; mean: 1 and 0 if null
  int64_t columns;

  static ColumnValues of(const BatchNormValues& v, int64_t columns) {
    return {pointer_of<float>(v.mean), pointer_of<float>(v.rstd), pointer_of<float>(v.scale),
            pointer_of<float>(v.bias), columns};
  }
  __device__ float factor(int64_t group, int64_t j) const {
    if (!mean) return 1;
    return rstd[group * columns + j] * (scale ? scale[j] : 1.0f);
  }
  // norm(x) = x * factor + shift. All kernels form it alike, so that backward finds the zeros of
  // the ReLU that forward had.
  __device__ float shift(int64_t group, int64_t j, float factor_of_j) const {
    if (!mean) return 0;
    return fmaf(-mean[group * columns + j], factor_of_j, bias ? bias[j] : 0.0f);
  }
};

// ---- loops over rows
constexpr int kGroupedRowPack = 4, kGroupedRowThreads = 256, kGroupedRowsOfThread = 8;

// A block has `across` packs of columns and `down` rows at a time.
struct GroupedRowGrid {
  int across, down;
  int64_t packs, blocks_across, chunk, chunks;  // chunk: rows of a block, within one group

  GroupedRowGrid(int64_t rows, int64_t columns, int pack)
      : packs(base::ceil_div(columns, pack)),
        blocks_across(base::ceil_div(packs, kGroupedRowThreads)) {
    across = int(std::min<int64_t>(packs, kGroupedRowThreads));
    down = kGroupedRowThreads / across;
    chunk = int64_t(down) * kGroupedRowsOfThread;
    chunks = base::ceil_div(rows, chunk);
  }
};

template <bool kAligned, int N, class Body>
__global__ void __launch_bounds__(kGroupedRowThreads)
    each_row_of_group(Body body, int64_t rows, int64_t columns, int64_t chunk, int64_t chunks) {
  const int64_t j = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (j >= columns) return;
  const int64_t group = blockIdx.x / chunks, first = blockIdx.x % chunks * chunk;
  const int64_t end = first + chunk < rows ? first + chunk : rows;
  const auto numbers = body.template numbers<N>(group, j, columns - j);
  for (int64_t r = first + threadIdx.y; r < end; r += blockDim.y)
    body.template run<kAligned, N>(numbers, (group * rows + r) * columns + j, columns - j);
}

template <class Body>
void for_rows_of_groups(const Body& body, int64_t groups, int64_t rows, int64_t columns,
                        std::initializer_list<View> views, Queue& queue) {
  if (rows == 0) return;
  auto start = [&](auto* kernel, int pack) {
    const GroupedRowGrid grid(rows, columns, pack);
    const dim3 blocks(blocks_for(groups * grid.chunks, 1).x, unsigned(grid.blocks_across));
    launch(kernel, blocks, dim3(unsigned(grid.across), unsigned(grid.down)), 0, queue, body, rows,
           columns, grid.chunk, grid.chunks);
  };
  bool aligned = true;
  for (const View& v : views)
    aligned = aligned && (v.none() || packs_fit(kGroupedRowPack, columns, {v}));
  if (aligned)
    start(each_row_of_group<true, kGroupedRowPack, Body>, kGroupedRowPack);
  else
    start(each_row_of_group<false, 1, Body>, 1);
}

}  // namespace kernels
