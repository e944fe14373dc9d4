// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of GELU and its gradient.
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/gelu.hpp"

namespace kernels {
namespace {

template <class T>
struct GeluForwardBody {
  T* y;
  const T* x;
  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> v = load<true, N>(x + i, N);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = gelu_of(v[k]);
    store<true>(y + i, v, N);
  }
};

template <class T>
struct GeluBackwardBody {
  T* dx;
  const T *dy, *x;
  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> v = load<true, N>(x + i, N), d = load<true, N>(dy + i, N);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = d[k] * gelu_gradient_of(v[k]);
    store<true>(dx + i, v, N);
  }
};

template <class T>
void forward(const GeluForward& a, Queue& queue) {
  for_each_element<int(16 / sizeof(T))>(
      GeluForwardBody<T>{static_cast<T*>(a.y.data), static_cast<const T*>(a.x.data)}, a.x.count,
      queue, {a.y.data, a.x.data});
}

template <class T>
void backward(const GeluBackward& a, Queue& queue) {
  GeluBackwardBody<T> body{static_cast<T*>(a.dx.data), static_cast<const T*>(a.dy.data),
                           static_cast<const T*>(a.x.data)};
  for_each_element<int(16 / sizeof(T))>(body, a.x.count, queue, {a.dx.data, a.dy.data, a.x.data});
}

}  // namespace

void run_cuda(const GeluForward& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) { forward<decltype(element)>(a, queue); });
}

void run_cuda(const GeluBackward& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) { backward<decltype(element)>(a, queue); });
}

}  // namespace kernels
