// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the end of a step that wrote some rows of a state. The host does not check
// the index: a row that does not exist is left out.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launch_shapes.hpp"
#include "kernels/keep_rows.hpp"

namespace kernels {
namespace {

constexpr int kKeepThreads = 128;

struct KeepItem {
  float *kept, *state;
  const float *before, *decided;
  const int32_t* index;
  int64_t rows, width, state_rows, first, count;
};

// A block has a row of the index. Of equal rows the last one is written.
__global__ void __launch_bounds__(kKeepThreads) keep_rows(KeepItem a) {
  __shared__ BlockShared<double> shared;
  const int64_t me = int64_t(blockIdx.x), row = a.index[me];
  double later = row < 0 || row >= a.state_rows;
  for (int64_t i = me + 1 + threadIdx.x; i < a.rows; i += blockDim.x) later += a.index[i] == row;
  if (block_sum(later, shared) > 0) return;
  const bool applied = a.decided[2] != 0;
  for (int64_t c = threadIdx.x; c < a.width; c += blockDim.x) {
    const int64_t at = row * a.width + c;
    if (!applied)
      a.state[at] = a.before[me * a.width + c];
    else if (at >= a.first && at < a.first + a.count)
      a.kept[at - a.first] = a.state[at];
  }
}

}  // namespace

void run_cuda(const KeepRows& a, Queue& queue) {
  const KeepItem item{a.kept.none() ? nullptr : a.kept.f32(),
                      a.state.f32(),
                      a.before.f32(),
                      a.decided.f32(),
                      a.index.i32(),
                      a.rows,
                      a.width,
                      a.state_rows,
                      a.first,
                      a.kept.count};
  launch(keep_rows, blocks_for(a.rows, 1), dim3(kKeepThreads), 0, queue, item);
}

}  // namespace kernels
