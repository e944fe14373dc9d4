// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of layer scale with stochastic depth. Sums over rows are added as in
// column_sum.cu: blocks of rows in parallel, then their sums in order.
#include "kernels/cuda/partial_sums.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/layer_scale.hpp"

namespace kernels {
namespace {

constexpr int kScalePack = 4, kScaleTurns = 8, kScaleWidth = kWarp * kScalePack;

template <class T>
struct ScaleBody {
  float* y;
  const float* residual;
  const T* x;
  const float *scale, *factor;  // factor may be null
  int64_t rows, width;
  template <bool kAligned, int N>
  __device__ void run(int64_t row, int64_t column, int64_t left) const {
    const float f = factor ? factor[row / rows] : 1.0f;
    Floats<N> v = load<kAligned, N>(residual + row * width + column, left);
    const Floats<N> w = load<kAligned, N>(x + row * width + column, left),
                    s = load<kAligned, N>(scale + column, left);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] += w[k] * s[k] * f;
    store<kAligned>(y + row * width + column, v, left);
  }
};

template <class T>
struct ScaleGradients {
  T* dx;
  const float* dy;
  const T* x;
  const float *scale, *factor;  // factor may be null
  int64_t all_rows, rows, width;
};

// dx of a block's rows, and partial[block of rows][width] = their part of dscale, if there is one.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kWarp* kScaleTurns)
    scale_backward_blocks(ScaleGradients<T> a, int64_t rows_per_block, float* partial) {
  __shared__ float sums[kScaleTurns][kScaleWidth];
  const int64_t column = int64_t(blockIdx.x) * kScaleWidth + threadIdx.x * kScalePack;
  const int64_t first = int64_t(blockIdx.y) * rows_per_block,
                end = first + rows_per_block < a.all_rows ? first + rows_per_block : a.all_rows;
  Floats<kScalePack> sum{};
  if (column < a.width) {
    const int64_t left = a.width - column;
    const Floats<kScalePack> s = load<kAligned, kScalePack>(a.scale + column, left);
    for (int64_t row = first + threadIdx.y; row < end; row += kScaleTurns) {
      const float f = a.factor ? a.factor[row / a.rows] : 1.0f;
      const int64_t at = row * a.width + column;
      Floats<kScalePack> d = load<kAligned, kScalePack>(a.dy + at, left), out;
#pragma unroll
      for (int k = 0; k < kScalePack; ++k) {
        d[k] *= f;
        out[k] = d[k] * s[k];
      }
      store<kAligned>(a.dx + at, out, left);
      if (!partial) continue;
      const Floats<kScalePack> v = load<kAligned, kScalePack>(a.x + at, left);
#pragma unroll
      for (int k = 0; k < kScalePack; ++k) sum[k] = fmaf(d[k], v[k], sum[k]);
    }
  }
  if (!partial) return;
#pragma unroll
  for (int k = 0; k < kScalePack; ++k) sums[threadIdx.y][threadIdx.x * kScalePack + k] = sum[k];
  __syncthreads();
  const int j = int(threadIdx.y) * kWarp + int(threadIdx.x);
  if (j >= kScaleWidth || int64_t(blockIdx.x) * kScaleWidth + j >= a.width) return;
  float total = 0;
  for (int t = 0; t < kScaleTurns; ++t) total += sums[t][j];
  partial[int64_t(blockIdx.y) * a.width + int64_t(blockIdx.x) * kScaleWidth + j] = total;
}

template <class T>
void backward(const LayerScaleBackward& a, Queue& queue) {
  const RowCuts cuts = column_sum_cuts(a.images * a.rows);
  float* partial = nullptr;
  if (const size_t bytes = cuda_scratch(a)) partial = static_cast<float*>(queue.scratch(bytes));
  const ScaleGradients<T> of{static_cast<T*>(a.dx.data),
                             a.dy.f32(),
                             static_cast<const T*>(a.x.data),
                             a.scale.f32(),
                             a.factor.none() ? nullptr : a.factor.f32(),
                             a.images * a.rows,
                             a.rows,
                             a.columns};
  const dim3 grid(blocks_for(a.columns, kScaleWidth).x, unsigned(cuts.count())),
      block(kWarp, kScaleTurns);
  if (packs_fit(kScalePack, a.columns, {a.dx, a.dy, a.x, a.scale}))
    launch(scale_backward_blocks<true, T>, grid, block, 0, queue, of, cuts.block, partial);
  else
    launch(scale_backward_blocks<false, T>, grid, block, 0, queue, of, cuts.block, partial);
  if (!a.dscale.none())
    add_partials(a.dscale.f32(), partial, cuts.count(), a.columns, a.columns, a.write, queue);
}

}  // namespace

void run_cuda(const LayerScaleForward& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) {
    using T = decltype(element);
    const ScaleBody<T> body{a.y.f32(),
                            a.residual.f32(),
                            static_cast<const T*>(a.x.data),
                            a.scale.f32(),
                            a.factor.none() ? nullptr : a.factor.f32(),
                            a.rows,
                            a.columns};
    for_each_row<4>(body, a.images * a.rows, a.columns,
                    packs_fit(4, a.columns, {a.y, a.residual, a.x, a.scale}), queue);
  });
}

void run_cuda(const LayerScaleBackward& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) { backward<decltype(element)>(a, queue); });
}

}  // namespace kernels
