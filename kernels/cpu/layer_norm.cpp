#include "kernels/layer_norm.hpp"

#include <cstring>

#include "base/narrow.hpp"
#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

void check(const LayerNormForward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  CHECK(a.eps >= 0, "{}: eps is {}", name_of(a.op), a.eps);
  need_activation(a.op, "y", a.y, {a.rows, a.columns});
  need_view(a.op, "mean", a.mean, DType::f32, {a.rows});
  need_view(a.op, "rstd", a.rstd, DType::f32, {a.rows});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.columns});
  need_view(a.op, "scale", a.scale, DType::f32, {a.columns});
  allow_view(a.op, "bias", a.bias, DType::f32, {a.columns});
}

Cost cost(const LayerNormForward& a) {
  int64_t n = a.rows * a.columns;
  return {8 * n, a.y.bytes() + 4 * (n + 2 * a.rows + (a.bias.none() ? 1 : 2) * a.columns)};
}

void run_cpu(const LayerNormForward& a, Queue& queue) {
  float *mean = a.mean.f32(), *rstd = a.rstd.f32(), *x = a.x.f32();
  vector_table().with(a.y.type, [&](const auto& loops, auto element) {
    auto* y = static_cast<decltype(element)*>(a.y.data);
    for_ranges(queue, a.rows, a.rows * a.columns, 1, [&](int64_t r, int64_t end) {
      loops.layer_norm_forward({.y = y + r * a.columns, .mean = mean + r, .rstd = rstd + r, .x = x + r * a.columns,
                                .scale = a.scale.f32(), .bias = a.bias.none() ? nullptr : a.bias.f32(), .rows = end - r,
                                .columns = a.columns, .eps = a.eps});
    });
  });
}

void check(const LayerNormBackward& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  allow_view(a.op, "dx", a.dx, DType::f32, {a.rows, a.columns});
  allow_view(a.op, "dscale", a.dscale, DType::f32, {a.columns});
  allow_view(a.op, "dbias", a.dbias, DType::f32, {a.columns});
  need_view(a.op, "dy", a.dy, DType::f32, {a.rows, a.columns});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.columns});
  need_view(a.op, "mean", a.mean, DType::f32, {a.rows});
  need_view(a.op, "rstd", a.rstd, DType::f32, {a.rows});
  need_view(a.op, "scale", a.scale, DType::f32, {a.columns});
}

Cost cost(const LayerNormBackward& a) {
  int64_t n = a.rows * a.columns;
  int64_t dx = a.dx.none() ? 0 : a.dx_write == Write::accumulate ? 2 * n : n;
  int64_t params = (!a.dscale.none() + !a.dbias.none()) * a.columns * (a.param_write == Write::accumulate ? 2 : 1);
  return {16 * n, 4 * (2 * n + dx + params + 2 * a.rows + a.columns)};
}

namespace {
// out (+)= the blocks' partial sums in order; they are `stride` floats apart.
void add_blocks(float* __restrict out, const float* __restrict partial, int64_t blocks, int64_t stride, int64_t columns,
                Write write) {
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
  if (scale || bias) partial = static_cast<float*>(queue.scratch(size_t(blocks.count() * 2 * stride) * sizeof(float)));

  for_ranges(queue, blocks.count(), a.rows * a.columns, 1, [&](int64_t b, int64_t end) {
    for (; b < end; ++b) {
      int64_t r = blocks.begin(b);
      float* sums = partial + b * 2 * stride;
      if (partial) std::memset(sums, 0, size_t(2 * stride) * sizeof(float));
      kernel({.dx = dx ? dx + r * a.columns : nullptr, .dscale = scale ? sums : nullptr,
              .dbias = bias ? sums + stride : nullptr, .dy = dy + r * a.columns, .x = x + r * a.columns,
              .mean = a.mean.f32() + r, .rstd = a.rstd.f32() + r, .scale = a.scale.f32(), .rows = blocks.end(b) - r,
              .columns = a.columns, .add_dx = a.dx_write == Write::accumulate});
    }
  });
  if (scale) add_blocks(a.dscale.f32(), partial, blocks.count(), 2 * stride, a.columns, a.param_write);
  if (bias) add_blocks(a.dbias.f32(), partial + stride, blocks.count(), 2 * stride, a.columns, a.param_write);
}

}  // namespace kernels
