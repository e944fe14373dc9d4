// SPDX-License-Identifier: Apache-2.0
// CPU implementation of token embedding and its gradient.
#include "kernels/embedding.hpp"

#include <cstring>

#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {

void run_cpu(const EmbeddingForward& a, Queue& queue) {
  const int32_t* ids = a.ids.i32();
  need_ids(a.op, ids, a.rows, 0, a.vocabulary);
  float *y = a.y.f32(), *table = a.table.f32(), *positions = a.positions.f32();
  for_ranges(queue, a.rows, a.rows * a.width, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      float* __restrict out = y + r * a.width;
      const float *word = table + ids[r] * a.width, *position = positions + r % a.length * a.width;
      for (int64_t j = 0; j < a.width; ++j) out[j] = word[j] + position[j];
    }
  });
}

// Columns, not rows, are divided among threads. Three rows in four may have the same id (the mask
// token), and no two threads may add to the same element. Each element adds its rows in row order.
void run_cpu(const EmbeddingBackward& a, Queue& queue) {
  const int32_t* ids = a.ids.i32();
  need_ids(a.op, ids, a.rows, 0, a.vocabulary);
  float *dtable = a.dtable.f32(), *dy = a.dy.f32();
  if (a.write == Write::overwrite)
    for_ranges(queue, a.dtable.count, a.dtable.count, 1024, [&](int64_t i, int64_t end) {
      std::memset(dtable + i, 0, size_t(end - i) * sizeof(float));
    });
  for_ranges(queue, a.width, a.rows * a.width, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < a.rows; ++r) {
      float* __restrict out = dtable + ids[r] * a.width;
      const float* in = dy + r * a.width;
      for (int64_t j = begin; j < end; ++j) out[j] += in[j];
    }
  });
}

}  // namespace kernels
