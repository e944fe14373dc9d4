// SPDX-License-Identifier: Apache-2.0
// CPU implementation of sums over the rows of a matrix.
#include <cstring>

#include "base/narrow.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/cpu/vector_table.hpp"
#include "kernels/gemm.hpp"

namespace kernels {
namespace {

// partial[block][stride] = the sums over each block's rows.
template <class T>
void block_sums(const ColumnSum& a, const RowBlocks& blocks, float* partial, int64_t stride,
                const T* x, const ActivationLoops<T>& loops, Queue& queue) {
  for_ranges(queue, blocks.count(), a.m * a.n, 1, [&](int64_t b, int64_t end) {
    for (; b < end; ++b) {
      float* sums = partial + b * stride;
      std::memset(sums, 0, size_t(stride) * sizeof(float));
      loops.add_rows(sums, x + blocks.begin(b) * a.n, blocks.end(b) - blocks.begin(b), a.n);
    }
  });
}

}  // namespace

void run_cpu(const ColumnSum& a, Queue& queue) {
  float* out = a.out.f32();
  RowBlocks blocks(a.m);
  int64_t stride = base::round_up(a.n, 16);
  float* partial =
      static_cast<float*>(queue.scratch(size_t(blocks.count() * stride) * sizeof(float)));
  vector_table().with(a.x.type, [&](const auto& loops, auto element) {
    block_sums(a, blocks, partial, stride, static_cast<decltype(element)*>(a.x.data), loops, queue);
  });
  for_ranges(queue, a.n, a.n * blocks.count(), 64, [&](int64_t begin, int64_t end) {
    if (a.write == Write::overwrite)
      std::memset(out + begin, 0, size_t(end - begin) * sizeof(float));
    for (int64_t b = 0; b < blocks.count(); ++b) {
      const float* sums = partial + b * stride;
      for (int64_t j = begin; j < end; ++j) out[j] += sums[j];
    }
  });
}

}  // namespace kernels
