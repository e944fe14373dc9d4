// SPDX-License-Identifier: Apache-2.0
// CUDA kernels that convert weights of convolutions from and to channels last, and results of
// cuDNN to floats.
#include "kernels/cuda/convolution_cudnn.hpp"
#include "kernels/cuda/floats.cuh"

namespace kernels {
namespace {

// Element i of weights with channels last is element `plain(i)` of those with channels first.
struct Order {
  int64_t in, places;
  __device__ int64_t plain(int64_t i) const {
    const int64_t channel = i % in, place = i / in % places, out = i / in / places;
    return (out * in + channel) * places + place;
  }
};
Order order_of(const ConvolutionShape& s) {
  return {s.in / s.groups, s.window.kernel_height * s.window.kernel_width};
}

template <class T>
struct LastBody {
  T* to;
  const T* from;
  Order order;
  template <int N>
  __device__ void run(int64_t i) const {
    for (int k = 0; k < N; ++k) to[i + k] = from[order.plain(i + k)];
  }
};

template <class T>
struct FirstBody {
  float* to;
  const T* from;
  Order order;
  bool add;
  template <int N>
  __device__ void run(int64_t i) const {
    for (int k = 0; k < N; ++k) {
      float& w = to[order.plain(i + k)];
      w = add ? w + widen(from[i + k]) : widen(from[i + k]);
    }
  }
};

template <class T>
struct FloatsBody {
  float* to;
  const T* from;
  bool add;
  template <int N>
  __device__ void run(int64_t i) const {
    for (int k = 0; k < N; ++k)
      to[i + k] = add ? to[i + k] + widen(from[i + k]) : widen(from[i + k]);
  }
};

template <class T>
void put_last(void* to, const View& weights, const ConvolutionShape& shape, Queue& queue) {
  const LastBody<T> body{static_cast<T*>(to), static_cast<const T*>(weights.data), order_of(shape)};
  for_each_element<1>(body, weights.count, queue, {});
}

}  // namespace

void put_channels_last(void* to, const View& weights, const ConvolutionShape& shape, Queue& queue) {
  if (weights.type == DType::f32)
    put_last<float>(to, weights, shape, queue);
  else
    put_last<uint16_t>(to, weights, shape, queue);
}

void take_channels_last(const View& dw, const View& from, const ConvolutionShape& shape,
                        Write write, Queue& queue) {
  with_activation(from.type, [&](auto element) {
    using T = decltype(element);
    const FirstBody<T> body{dw.f32(), static_cast<const T*>(from.data), order_of(shape),
                            write == Write::accumulate};
    for_each_element<1>(body, dw.count, queue, {});
  });
}

void take_floats(const View& to, const View& from, Write write, Queue& queue) {
  with_activation(from.type, [&](auto element) {
    using T = decltype(element);
    const FloatsBody<T> body{to.f32(), static_cast<const T*>(from.data),
                             write == Write::accumulate};
    for_each_element<1>(body, to.count, queue, {});
  });
}

}  // namespace kernels
