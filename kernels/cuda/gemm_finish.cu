// SPDX-License-Identifier: Apache-2.0
// CUDA kernel for the work after a product that cuBLASLt cannot do.
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/gemm_finish.hpp"
#include "kernels/cuda/rows.cuh"

namespace kernels {
namespace {

// Finishes a pack of elements of c. T is the type of c, bias, gelu and gelu_of.
template <class T>
struct FinishBody {
  T *c, *gelu;
  const T *gelu_input, *bias;
  const float *x, *residual;
  int64_t n, ldc;
  bool accumulate;
  template <bool kAligned, int N>
  __device__ void run(int64_t row, int64_t column, int64_t left) const {
    Floats<N> v{};
    if (x) v = load<kAligned, N>(x + row * n + column, left);
    if (bias) add(v, load<kAligned, N>(bias + column, left));
    if (residual) add(v, load<kAligned, N>(residual + row * n + column, left));
    if (gelu) {
      Floats<N> g;
#pragma unroll
      for (int i = 0; i < N; ++i) g[i] = gelu_of(v[i]);
      store<kAligned>(gelu + row * n + column, g, left);
    }
    if (gelu_input) {
      const Floats<N> input = load<kAligned, N>(gelu_input + row * n + column, left);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] *= gelu_gradient_of(input[i]);
    }
    if (accumulate) add(v, load<kAligned, N>(c + row * ldc + column, left));
    store<kAligned>(c + row * ldc + column, v, left);
  }
  template <int N>
  static __device__ void add(Floats<N>& to, const Floats<N>& what) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] += what[i];
  }
};

template <class T>
void finish(const Gemm& a, const float* x, Queue& queue) {
  FinishBody<T> body{static_cast<T*>(a.c.data),
                     static_cast<T*>(a.gelu.data),
                     static_cast<const T*>(a.gelu_of.data),
                     static_cast<const T*>(a.bias.data),
                     x,
                     static_cast<const float*>(a.residual.data),
                     a.n,
                     a.leading_of_c(),
                     a.write == Write::accumulate};
  const View whole_x{const_cast<float*>(x), DType::f32, a.m * a.n};
  bool aligned =
      body.ldc % 4 == 0 && packs_fit(4, a.n, {a.c, a.gelu, a.gelu_of, a.bias, a.residual, whole_x});
  for_each_row<4>(body, a.m, a.n, aligned, queue);
}

}  // namespace

void finish_gemm(const Gemm& a, const float* x, Queue& queue) {
  with_activation(a.c.type, [&](auto element) { finish<decltype(element)>(a, x, queue); });
}

}  // namespace kernels
