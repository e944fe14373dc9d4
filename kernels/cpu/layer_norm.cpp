// SPDX-License-Identifier: Apache-2.0
// CPU implementation of layer normalisation. vector_rows.hpp computes its rows.
#include "kernels/layer_norm.hpp"

#include <cstring>

#include "base/narrow.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

void run_cpu(const LayerNormForward& a, Queue& queue) {
  float *mean = a.mean.f32(), *rstd = a.rstd.f32(), *x = a.x.f32();
  vector_table().with(a.y.type, [&](const auto& loops, auto element) {
    auto* y = static_cast<decltype(element)*>(a.y.data);
    for_ranges(queue, a.rows, a.rows * a.columns, 1, [&](int64_t r, int64_t end) {
      loops.layer_norm_forward({.y = y + r * a.columns,
                                .mean = mean + r,
                                .rstd = rstd + r,
                                .x = x + r * a.columns,
                                .scale = a.scale.f32(),
                                .bias = a.bias.none() ? nullptr : a.bias.f32(),
                                .rows = end - r,
                                .columns = a.columns,
                                .eps = a.eps});
    });
  });
}

namespace {
// out = (or +=) the partial sums of all blocks, in order. Blocks lie `stride` floats apart.
void add_blocks(float* __restrict out, const float* __restrict partial, int64_t blocks,
                int64_t stride, int64_t columns, Write write) {
  if (write == Write::overwrite) std::memset(out, 0, size_t(columns) * sizeof(float));
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t j = 0; j < columns; ++j) out[j] += partial[b * stride + j];
}
}  // namespace

void run_cpu(const LayerNormBackward& a, Queue& queue) {
  auto kernel = vector_table().layer_norm_backward;
  float *dx = a.dx.none() ? nullptr : a.dx.f32(), *dy = a.dy.f32(), *x = a.x.f32();
  bool scale = !a.dscale.none(), bias = !a.dbias.none();
  RowBlocks blocks(a.rows);
  int64_t stride = base::round_up(a.columns, 16);
  float* partial = nullptr;  // [block][dscale, dbias][stride]
  if (scale || bias)
    partial =
        static_cast<float*>(queue.scratch(size_t(blocks.count() * 2 * stride) * sizeof(float)));

  for_ranges(queue, blocks.count(), a.rows * a.columns, 1, [&](int64_t b, int64_t end) {
    for (; b < end; ++b) {
      int64_t r = blocks.begin(b);
      float* sums = partial + b * 2 * stride;
      if (partial) std::memset(sums, 0, size_t(2 * stride) * sizeof(float));
      kernel({.dx = dx ? dx + r * a.columns : nullptr,
              .dscale = scale ? sums : nullptr,
              .dbias = bias ? sums + stride : nullptr,
              .dy = dy + r * a.columns,
              .x = x + r * a.columns,
              .mean = a.mean.f32() + r,
              .rstd = a.rstd.f32() + r,
              .scale = a.scale.f32(),
              .rows = blocks.end(b) - r,
              .columns = a.columns,
              .add_dx = a.dx_write == Write::accumulate});
    }
  });
  if (scale)
    add_blocks(a.dscale.f32(), partial, blocks.count(), 2 * stride, a.columns, a.param_write);
  if (bias)
    add_blocks(a.dbias.f32(), partial + stride, blocks.count(), 2 * stride, a.columns,
               a.param_write);
}

}  // namespace kernels
