// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of layer normalisation. A warp has a row and reads it once. Backward computes
// dx, its rounded copy and all sums over rows in one pass. Each warp adds up its rows in registers,
// then the sums of warps are added in order, then those of blocks.
#include "base/narrow.hpp"
#include "kernels/cpu/vector_table.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layer_norm_rows.cuh"
#include "kernels/cuda/partial_sums.cuh"
#include "kernels/layer_norm.hpp"

namespace kernels {
namespace {

template <bool kAligned, int kPacks, class T>
__global__ void __launch_bounds__(kNormThreads, 6) norm_forward_rows(LayerNormRows<T> a) {
  const int64_t row = int64_t(blockIdx.x) * kNormWarps + threadIdx.x / kWarp, n = a.columns;
  if (row >= a.rows) return;
  const NormRow<kAligned, kPacks> x(a.x + row * n, n);
  float sum = 0;
  for_packs<kPacks>(n, [&](int k, int64_t column) {
    NormFloats p = x.at(k, column);
    sum += (p[0] + p[1]) + (p[2] + p[3]);
  });
  const float mean = warp_sum(sum) / float(n);
  float squares = 0;
  for_packs<kPacks>(n, [&](int k, int64_t column) {
    NormFloats p = x.at(k, column);
#pragma unroll
    for (int i = 0; i < kNormPack; ++i)
      if (kAligned || column + i < n) squares = fmaf(p[i] - mean, p[i] - mean, squares);
  });
  const float rstd = 1 / sqrtf(warp_sum(squares) / float(n) + a.eps);
  if (threadIdx.x % kWarp == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
  for_packs<kPacks>(n, [&](int k, int64_t column) {
    NormFloats p = x.at(k, column), scale = load<kAligned, kNormPack>(a.scale + column, n - column),
               bias{};
    if (a.bias) bias = load<kAligned, kNormPack>(a.bias + column, n - column);
#pragma unroll
    for (int i = 0; i < kNormPack; ++i) p[i] = (p[i] - mean) * (rstd * scale[i]) + bias[i];
    store<kAligned>(a.y + row * n + column, p, n - column);
  });
}

template <class T>
void forward(const LayerNormForward& a, Queue& queue) {
  LayerNormRows<T> rows{.y = static_cast<T*>(a.y.data),
                        .mean = a.mean.f32(),
                        .rstd = a.rstd.f32(),
                        .x = a.x.f32(),
                        .scale = a.scale.f32(),
                        .bias = a.bias.none() ? nullptr : a.bias.f32(),
                        .rows = a.rows,
                        .columns = a.columns,
                        .eps = a.eps};
  auto start = [&](auto* kernel) {
    launch(kernel, blocks_for(a.rows, kNormWarps), dim3(kNormThreads), 0, queue, rows);
  };
  if (!packs_fit(kNormPack, a.columns, {a.y, a.x, a.scale, a.bias}))
    return start(norm_forward_rows<false, 0, T>);
  switch (norm_packs(a.columns)) {
    case 3:
      return start(norm_forward_rows<true, 3, T>);
    case 6:
      return start(norm_forward_rows<true, 6, T>);
    case 8:
      return start(norm_forward_rows<true, 8, T>);
    default:
      return start(norm_forward_rows<true, 0, T>);
  }
}

// Means over a row, of g = dy * scale and of g * z. dx needs them.
struct RowMeans {
  float g, gz;
};
template <bool kAligned, int kPacks, class D>
__device__ RowMeans row_means(const NormRow<kAligned, kPacks>& x,
                              const NormRow<kAligned, kPacks, D>& dy, const float* scale,
                              float mean, float rstd) {
  const int64_t n = x.columns;
  float g_sum = 0, gz_sum = 0;
  for_packs<kPacks>(n, [&](int k, int64_t column) {
    NormFloats p = x.at(k, column), d = dy.at(k, column),
               s = load<kAligned, kNormPack>(scale + column, n - column);
#pragma unroll
    for (int i = 0; i < kNormPack; ++i) {  // past the end of the row g is 0
      const float g = d[i] * s[i];
      g_sum += g;
      gz_sum = fmaf(g, (p[i] - mean) * rstd, gz_sum);
    }
  });
  return {warp_sum(g_sum) / float(n), warp_sum(gz_sum) / float(n)};
}

// D is the type of dy, R that of the rounded copy of dx.
template <class D, class R>
struct NormGradients {
  float* dx;
  R* rounded;  // may be null
  const D* dy;
  const float *x, *mean, *rstd, *scale;
  int64_t rows, columns;
  bool add_dx;
  int kinds;  // of sums: dscale, dbias and, if 3, those of dx
};

// Computes dx of a block's rows and their parts of the sums, in `partial` [block][kinds][columns].
template <bool kAligned, int kPacks, class D, class R>
__global__ void __launch_bounds__(kNormThreads)
    norm_backward_rows(NormGradients<D, R> a, int64_t rows_per_block, float* partial) {
  constexpr int kSums = kPacks > 0 ? kPacks : 1, kWidth = kSums * kWarp * kNormPack;
  __shared__ float shared[kPacks > 0 ? 3 * kWidth : 1];
  const int warp = threadIdx.x / kWarp;
  const int64_t n = a.columns, first = int64_t(blockIdx.x) * rows_per_block;
  const int64_t end = first + rows_per_block < a.rows ? first + rows_per_block : a.rows;
  NormFloats dscale[kSums] = {}, dbias[kSums] = {}, sums[kSums] = {};

  for (int64_t row = first + warp; row < end; row += kNormWarps) {
    const NormRow<kAligned, kPacks> x(a.x + row * n, n);
    const NormRow<kAligned, kPacks, D> dy(a.dy + row * n, n);
    const float mean = a.mean[row], rstd = a.rstd[row];
    const RowMeans means = row_means(x, dy, a.scale, mean, rstd);
    for_packs<kPacks>(n, [&](int k, int64_t column) {
      NormFloats p = x.at(k, column), d = dy.at(k, column), out{};
      NormFloats s = load<kAligned, kNormPack>(a.scale + column, n - column);
      float* dx = a.dx + row * n + column;
      if (a.add_dx) out = load<kAligned, kNormPack>(dx, n - column);
#pragma unroll
      for (int i = 0; i < kNormPack; ++i) {
        const float z = (p[i] - mean) * rstd;
        out[i] += rstd * (fmaf(d[i], s[i], -means.g) - z * means.gz);
        if constexpr (kPacks > 0) {
          dscale[k][i] = fmaf(d[i], z, dscale[k][i]);
          dbias[k][i] += d[i];
          sums[k][i] += out[i];
        }
      }
      store<kAligned>(dx, out, n - column);
      if (a.rounded) store<kAligned>(a.rounded + row * n + column, out, n - column);
    });
  }

  if constexpr (kPacks > 0) {
    for (int w = 0; w < kNormWarps; ++w) {
      if (w == warp)
        for_packs<kPacks>(n, [&](int k, int64_t column) {
#pragma unroll
          for (int i = 0; i < kNormPack; ++i) {
            float *s = shared + column + i, *b = s + kWidth, *t = b + kWidth;
            *s = w == 0 ? dscale[k][i] : *s + dscale[k][i];
            *b = w == 0 ? dbias[k][i] : *b + dbias[k][i];
            *t = w == 0 ? sums[k][i] : *t + sums[k][i];
          }
        });
      __syncthreads();
    }
    float* out = partial + int64_t(blockIdx.x) * a.kinds * n;
    for (int64_t j = threadIdx.x; j < n; j += kNormThreads)
      for (int kind = 0; kind < a.kinds; ++kind) out[kind * n + j] = shared[kind * kWidth + j];
  }
}

// Computes the sums alone, for any number of columns, after dx. Threads of one column share its
// rows in turn.
constexpr int kNormTurns = 8, kNormKinds = 3;
template <class D, class R>
__global__ void __launch_bounds__(kWarp* kNormTurns)
    norm_backward_columns(NormGradients<D, R> a, int64_t rows_per_block, float* partial) {
  __shared__ float sums[kNormKinds][kNormTurns][kWarp];
  const int64_t j = int64_t(blockIdx.x) * kWarp + threadIdx.x, n = a.columns,
                first = blockIdx.y * rows_per_block;
  const int64_t end = first + rows_per_block < a.rows ? first + rows_per_block : a.rows;
  float dscale = 0, dbias = 0, sum = 0;
  if (j < n)
    for (int64_t row = first + threadIdx.y; row < end; row += kNormTurns) {
      const float d = widen(a.dy[row * n + j]);
      dscale = fmaf(d, (a.x[row * n + j] - a.mean[row]) * a.rstd[row], dscale);
      dbias += d;
      if (a.kinds == kNormKinds) sum += a.dx[row * n + j];
    }
  sums[0][threadIdx.y][threadIdx.x] = dscale;
  sums[1][threadIdx.y][threadIdx.x] = dbias;
  sums[2][threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (int(threadIdx.y) >= a.kinds || j >= n) return;
  float total = 0;
  for (int t = 0; t < kNormTurns; ++t) total += sums[threadIdx.y][t][threadIdx.x];
  partial[(int64_t(blockIdx.y) * a.kinds + threadIdx.y) * n + j] = total;
}

// Computes dx, its copy, and the partial sums.
template <class D, class R>
void backward(const LayerNormBackward& a, const RowCuts& cuts, float* partial, Queue& queue) {
  const NormGradients<D, R> rows{.dx = a.dx.none() ? nullptr : a.dx.f32(),
                                 .rounded = static_cast<R*>(a.rounded.data),
                                 .dy = static_cast<const D*>(a.dy.data),
                                 .x = a.x.f32(),
                                 .mean = a.mean.f32(),
                                 .rstd = a.rstd.f32(),
                                 .scale = a.scale.f32(),
                                 .rows = a.rows,
                                 .columns = a.columns,
                                 .add_dx = a.dx_write == Write::accumulate,
                                 .kinds = a.sums.none() ? 2 : kNormKinds};
  const bool aligned = packs_fit(kNormPack, a.columns, {a.dx, a.rounded, a.dy, a.x, a.scale});
  const int packs = aligned && partial ? norm_packs(a.columns) : 0;
  auto start = [&](auto* kernel) {
    launch(kernel, dim3(unsigned(cuts.count())), dim3(kNormThreads), 0, queue, rows, cuts.block,
           partial);
  };
  if (rows.dx) {
    if (packs == 3)
      start(norm_backward_rows<true, 3, D, R>);
    else if (packs == 6)
      start(norm_backward_rows<true, 6, D, R>);
    else if (packs == 8)
      start(norm_backward_rows<true, 8, D, R>);
    else if (aligned)
      start(norm_backward_rows<true, 0, D, R>);
    else
      start(norm_backward_rows<false, 0, D, R>);
  }
  if (partial && (packs == 0 || !rows.dx))
    launch(norm_backward_columns<D, R>,
           dim3(blocks_for(a.columns, kWarp).x, unsigned(cuts.count())), dim3(kWarp, kNormTurns), 0,
           queue, rows, cuts.block, partial);
}

}  // namespace

void run_cuda(const LayerNormForward& a, Queue& queue) {
  with_activation(a.y.type, [&](auto element) { forward<decltype(element)>(a, queue); });
}

void run_cuda(const LayerNormBackward& a, Queue& queue) {
  const RowCuts cuts = norm_backward_cuts(a.rows);
  const int64_t kinds = a.sums.none() ? 2 : kNormKinds;
  float* partial = nullptr;  // [block][dscale, dbias, sums][columns]
  if (const size_t bytes = cuda_scratch(a)) partial = static_cast<float*>(queue.scratch(bytes));
  const bool f16 = a.dy.type == DType::f16 || a.rounded.type == DType::f16;
  if (a.dy.type == DType::f32)
    f16 ? backward<float, loops::F16>(a, cuts, partial, queue)
        : backward<float, uint16_t>(a, cuts, partial, queue);
  else
    f16 ? backward<loops::F16, loops::F16>(a, cuts, partial, queue)
        : backward<uint16_t, uint16_t>(a, cuts, partial, queue);
  auto add = [&](const View& out, int64_t kind, Write write) {
    if (!out.none())
      add_partials(out.f32(), partial + kind * a.columns, cuts.count(), kinds * a.columns,
                   a.columns, write, queue);
  };
  add(a.dscale, 0, a.param_write);
  add(a.dbias, 1, a.param_write);
  add(a.sums, 2, Write::overwrite);
}

}  // namespace kernels
