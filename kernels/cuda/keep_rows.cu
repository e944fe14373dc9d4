// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the end of a step that wrote some rows of a state. The host does not check
// the index: a row that does not exist is left out.
#include "kernels/cuda/elements.cuh"
#include "kernels/keep_rows.hpp"

namespace kernels {
namespace {

struct KeepBody {
  float *kept, *state;
  const float *before, *decided;
  const int32_t* index;
  int64_t width, state_rows, first, count;
  template <int N>
  __device__ void run(int64_t i) const {
    const bool applied = decided[2] != 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int64_t row = index[(i + k) / width], at = row * width + (i + k) % width;
      if (row < 0 || row >= state_rows) continue;
      if (!applied)
        state[at] = before[i + k];
      else if (at >= first && at < first + count)
        kept[at - first] = state[at];
    }
  }
};

}  // namespace

void run_cuda(const KeepRows& a, Queue& queue) {
  const KeepBody body{a.kept.none() ? nullptr : a.kept.f32(),
                      a.state.f32(),
                      a.before.f32(),
                      a.decided.f32(),
                      a.index.i32(),
                      a.width,
                      a.state_rows,
                      a.first,
                      a.kept.count};
  for_each_element<1>(body, a.rows * a.width, queue, {});
}

}  // namespace kernels
