// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of SwiGLU's hidden layer.
#include "kernels/cuda/floats.cuh"
#include "kernels/swiglu.hpp"

namespace kernels {
namespace {

// Bounded, so that no product of an infinity and 0 arises.
__device__ inline float power_of_gate(float x) {
  return x != x ? x : expf(fminf(fmaxf(-x, -86.0f), 87.0f));
}

template <class T>
struct SwigluForwardBody {
  T* y;
  const T *gate, *value;
  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> g = load<true, N>(gate + i, N);
    const Floats<N> v = load<true, N>(value + i, N);
#pragma unroll
    for (int k = 0; k < N; ++k) g[k] = g[k] / (1 + power_of_gate(g[k])) * v[k];
    store<true>(y + i, g, N);
  }
};

template <class T>
struct SwigluBackwardBody {
  T *dgate, *dvalue;
  const T *dy, *gate, *value;
  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> g = load<true, N>(gate + i, N), v = load<true, N>(value + i, N);
    const Floats<N> d = load<true, N>(dy + i, N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float power = power_of_gate(g[k]), s = 1 / (1 + power), silu = g[k] * s;
      g[k] = d[k] * v[k] * (s + silu * (s * power));
      v[k] = d[k] * silu;
    }
    store<true>(dgate + i, g, N);
    store<true>(dvalue + i, v, N);
  }
};

}  // namespace

void run_cuda(const SwigluForward& a, Queue& queue) {
  with_activation(a.gate.type, [&](auto element) {
    using T = decltype(element);
    const SwigluForwardBody<T> body{static_cast<T*>(a.y.data), static_cast<const T*>(a.gate.data),
                                    static_cast<const T*>(a.value.data)};
    for_each_element<int(16 / sizeof(T))>(body, a.gate.count, queue,
                                          {a.y.data, a.gate.data, a.value.data});
  });
}

void run_cuda(const SwigluBackward& a, Queue& queue) {
  with_activation(a.gate.type, [&](auto element) {
    using T = decltype(element);
    const SwigluBackwardBody<T> body{static_cast<T*>(a.dgate.data), static_cast<T*>(a.dvalue.data),
                                     static_cast<const T*>(a.dy.data),
                                     static_cast<const T*>(a.gate.data),
                                     static_cast<const T*>(a.value.data)};
    for_each_element<int(16 / sizeof(T))>(
        body, a.gate.count, queue,
        {a.dgate.data, a.dvalue.data, a.dy.data, a.gate.data, a.value.data});
  });
}

}  // namespace kernels
