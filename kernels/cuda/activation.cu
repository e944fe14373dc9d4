// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of activations.
#include "kernels/activation.hpp"
#include "kernels/cuda/floats.cuh"

namespace kernels {
namespace {

__device__ inline float sigmoid_of(float x) { return 1 / (1 + expf(-x)); }
__device__ inline float activate(float x, Activation kind) {
  if (kind == Activation::relu) return x < 0 ? 0 : x;  // NaN stays
  if (kind == Activation::gelu_quick) return x * sigmoid_of(1.702f * x);
  return 0.5f * x * (1 + erff(x * 0.70710678f));
}
__device__ inline float slope(float x, Activation kind) {
  if (kind == Activation::relu) return x > 0 ? 1 : 0;
  if (kind == Activation::gelu_quick) {
    const float s = sigmoid_of(1.702f * x);
    return s + 1.702f * x * s * (1 - s);
  }
  return 0.5f * (1 + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
}

template <class T>
struct ActivationForwardBody {
  T* y;
  const T* x;
  Activation kind;
  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> v = load<true, N>(x + i, N);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = activate(v[k], kind);
    store<true>(y + i, v, N);
  }
};

template <class T>
struct ActivationBackwardBody {
  T* dx;
  const T *dy, *x;
  Activation kind;
  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> v = load<true, N>(x + i, N), d = load<true, N>(dy + i, N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float s = slope(v[k], kind);
      v[k] = kind == Activation::relu && s == 0 ? 0 : d[k] * s;
    }
    store<true>(dx + i, v, N);
  }
};

}  // namespace

void run_cuda(const ActivationForward& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) {
    using T = decltype(element);
    const ActivationForwardBody<T> body{static_cast<T*>(a.y.data), static_cast<const T*>(a.x.data),
                                        a.kind};
    for_each_element<int(16 / sizeof(T))>(body, a.x.count, queue, {a.y.data, a.x.data});
  });
}

void run_cuda(const ActivationBackward& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) {
    using T = decltype(element);
    const ActivationBackwardBody<T> body{static_cast<T*>(a.dx.data),
                                         static_cast<const T*>(a.dy.data),
                                         static_cast<const T*>(a.x.data), a.kind};
    for_each_element<int(16 / sizeof(T))>(body, a.x.count, queue, {a.dx.data, a.dy.data, a.x.data});
  });
}

}  // namespace kernels
