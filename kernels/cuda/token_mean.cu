// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the mean over tokens and its gradient. A warp has 32 neighbouring packs of
// one example's mean, and walks over its rows.
#include "kernels/cuda/rows.cuh"
#include "kernels/token_mean.hpp"

namespace kernels {
namespace {

template <class T>
struct MeanBody {
  float* y;
  const T* x;
  int64_t rows, width;
  template <bool kAligned, int N>
  __device__ void run(int64_t b, int64_t column, int64_t left) const {
    const T* in = x + b * rows * width + column;
    Floats<N> sum{};
#pragma unroll 4
    for (int64_t r = 0; r < rows; ++r) {
      const Floats<N> v = load<kAligned, N>(in + r * width, left);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += v[k];
    }
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] /= float(rows);
    store<kAligned>(y + b * width + column, sum, left);
  }
};

struct SpreadBody {
  float* dx;
  const float* dy;
  int64_t rows, width;
  template <bool kAligned, int N>
  __device__ void run(int64_t row, int64_t column, int64_t left) const {
    Floats<N> v = load<kAligned, N>(dy + row / rows * width + column, left);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] /= float(rows);
    store<kAligned>(dx + row * width + column, v, left);
  }
};

}  // namespace

void run_cuda(const TokenMeanForward& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) {
    using T = decltype(element);
    const MeanBody<T> body{a.y.f32(), static_cast<const T*>(a.x.data), a.rows, a.width};
    for_each_row<4>(body, a.batch, a.width, packs_fit(4, a.width, {a.y, a.x}), queue);
  });
}

void run_cuda(const TokenMeanBackward& a, Queue& queue) {
  const SpreadBody body{a.dx.f32(), a.dy.f32(), a.rows, a.width};
  for_each_row<4>(body, a.batch * a.rows, a.width, packs_fit(4, a.width, {a.dx, a.dy}), queue);
}

}  // namespace kernels
