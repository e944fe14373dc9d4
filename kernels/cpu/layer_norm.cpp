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
// out = (or +=) the partial sums of all blocks, in order. Blocks are `stride` floats apart.
void add_blocks(float* __restrict out, const float* __restrict partial, int64_t blocks,
                int64_t stride, int64_t columns, Write write) {
  if (write == Write::overwrite) std::memset(out, 0, size_t(columns) * sizeof(float));
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t j = 0; j < columns; ++j) out[j] += partial[b * stride + j];
}
}  // namespace

void run_cpu(const LayerNormBackward& a, Queue& queue) {
  const VectorTable& table = vector_table();
  CHECK(a.dy.type != DType::f16 && a.rounded.type != DType::f16, "{}: only GPUs have f16",
        name_of(a.op));
  const bool narrow = a.dy.type == DType::bf16;
  float *dx = a.dx.none() ? nullptr : a.dx.f32(), *x = a.x.f32();
  bool scale = !a.dscale.none(), bias = !a.dbias.none(), sums_of_dx = !a.sums.none();
  RowBlocks blocks(a.rows);
  int64_t stride = base::round_up(a.columns, 16);
  const int64_t kinds = sums_of_dx ? 3 : 2;
  float* partial = nullptr;  // [block][dscale, dbias, sums][stride]
  const int64_t partials = scale || bias || sums_of_dx ? blocks.count() * kinds * stride : 0;
  const size_t floats = size_t(partials + (narrow ? a.dy.count : 0));
  float* scratch = floats ? static_cast<float*>(queue.scratch(floats * sizeof(float))) : nullptr;
  if (partials) partial = scratch;
  float* dy = narrow ? scratch + partials : a.dy.f32();  // narrow: each block widens its rows

  for_ranges(queue, blocks.count(), a.rows * a.columns, 1, [&](int64_t b, int64_t end) {
    for (; b < end; ++b) {
      int64_t r = blocks.begin(b);
      const int64_t first = r * a.columns, count = (blocks.end(b) - r) * a.columns;
      float* sums = partial ? partial + b * kinds * stride : nullptr;
      if (sums) std::memset(sums, 0, size_t(kinds * stride) * sizeof(float));
      if (narrow) table.from_bf16(dy + first, a.dy.bf16() + first, count);
      table.layer_norm_backward({.dx = dx ? dx + r * a.columns : nullptr,
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
      if (!a.rounded.none()) table.to_bf16(a.rounded.bf16() + first, dx + first, count);
      if (sums_of_dx)
        table.f32.add_rows(sums + 2 * stride, dx + first, blocks.end(b) - r, a.columns);
    }
  });
  if (scale)
    add_blocks(a.dscale.f32(), partial, blocks.count(), kinds * stride, a.columns, a.param_write);
  if (bias)
    add_blocks(a.dbias.f32(), partial + stride, blocks.count(), kinds * stride, a.columns,
               a.param_write);
  if (sums_of_dx)
    add_blocks(a.sums.f32(), partial + 2 * stride, blocks.count(), kinds * stride, a.columns,
               Write::overwrite);
}

}  // namespace kernels
