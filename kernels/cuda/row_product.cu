// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of products of few rows. A block computes 8 rows of 32 columns; each of its 8
// warps adds an eighth of the products. The parts are added in order, so the bits of a row depend
// only on its own elements.
#include "kernels/cuda/floats.cuh"
#include "kernels/row_product.hpp"

namespace kernels {
namespace {

constexpr int kProductRows = 8, kProductParts = 8;

template <class T, class C>
struct ProductTensors {
  C* c;
  const T *a, *b;
  const C* bias;
  const float* residual;
  int64_t m, n, k;
};

template <class T, class C>
__global__ void __launch_bounds__(kProductParts* kWarp) product_of_rows(ProductTensors<T, C> p) {
  static_assert(kProductRows == kProductParts, "in the end warp i writes row i");
  __shared__ float sums[kProductParts][kProductRows][kWarp];
  const int part = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int64_t column = int64_t(blockIdx.x) * kWarp + lane,
                first = int64_t(blockIdx.y) * kProductRows;
  const int rows = p.m - first < kProductRows ? int(p.m - first) : kProductRows;
  const int64_t begin = p.k * part / kProductParts, end = p.k * (part + 1) / kProductParts;
  float sum[kProductRows] = {};
  for (int64_t i = begin; i < end && column < p.n; ++i) {
    const float w = widen(p.b[i * p.n + column]);
#pragma unroll
    for (int r = 0; r < kProductRows; ++r)
      if (r < rows) sum[r] = fmaf(widen(p.a[(first + r) * p.k + i]), w, sum[r]);
  }
#pragma unroll
  for (int r = 0; r < kProductRows; ++r) sums[part][r][lane] = sum[r];
  __syncthreads();
  if (part >= rows || column >= p.n) return;
  float x = 0;
  for (int i = 0; i < kProductParts; ++i) x += sums[i][part][lane];
  if (p.bias) x += widen(p.bias[column]);
  const int64_t at = (first + part) * p.n + column;
  if (p.residual) x += p.residual[at];
  narrow(x, p.c[at]);
}

template <class T, class C>
void run_product(const RowProduct& a, Queue& queue) {
  const ProductTensors<T, C> p{.c = static_cast<C*>(a.c.data),
                               .a = static_cast<const T*>(a.a.data),
                               .b = static_cast<const T*>(a.b.data),
                               .bias = static_cast<const C*>(a.bias.data),
                               .residual = static_cast<const float*>(a.residual.data),
                               .m = a.m,
                               .n = a.n,
                               .k = a.k};
  const dim3 grid(blocks_for(a.n, kWarp).x, blocks_for(a.m, kProductRows).x);
  launch(product_of_rows<T, C>, grid, dim3(kProductParts * kWarp), 0, queue, p);
}

}  // namespace

void run_cuda(const RowProduct& a, Queue& queue) {
  with_activation(a.a.type, [&](auto element) {
    using T = decltype(element);
    if (a.c.type == a.a.type)
      run_product<T, T>(a, queue);
    else
      run_product<T, float>(a, queue);
  });
}

}  // namespace kernels
