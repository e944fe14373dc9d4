// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of max pooling and its gradient. Each thread reads the windows of its own
// result, so no sum needs atomics.
#include "kernels/cuda/pool.cuh"
#include "kernels/max_pool.hpp"

namespace kernels {
namespace {

__device__ inline bool wins(float v, float best) {
  return !(v <= best) && !(best != best && v == v);
}

template <class T>
struct MaxBody {
  T* y;
  uint8_t* place;
  const T* x;
  Window window;
  int64_t channels;
  template <bool kAligned, int N>
  __device__ void run(int64_t position, int64_t channel, int64_t left) const {
    Floats<N> best;
    int at[N];
    bool first = true;
    for_pixels_of(window, position, [&](int64_t pixel, int here) {
      const Floats<N> v = load<kAligned, N>(x + pixel * channels + channel, left);
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (first || wins(v[k], best[k])) {
          best[k] = v[k];
          at[k] = here;
        }
      first = false;
    });
    store<kAligned>(y + position * channels + channel, best, left);
    if (place)
      for (int k = 0; k < N; ++k)
        if (k < left) place[position * channels + channel + k] = uint8_t(at[k]);
  }
};

template <class T>
struct SpreadMaxBody {
  T* dx;
  const T* dy;
  const uint8_t* place;
  Window window;
  int64_t channels;
  template <bool kAligned, int N>
  __device__ void run(int64_t pixel, int64_t channel, int64_t left) const {
    Floats<N> sum{};
    for_windows_with(window, pixel, [&](int64_t position, int here) {
      const int64_t from = position * channels + channel;
      const Floats<N> d = load<kAligned, N>(dy + from, left);
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (k < left && place[from + k] == here) sum[k] += d[k];
    });
    store<kAligned>(dx + pixel * channels + channel, sum, left);
  }
};

}  // namespace

void run_cuda(const MaxPoolForward& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) {
    using T = decltype(element);
    const MaxBody<T> body{static_cast<T*>(a.y.data), a.place.none() ? nullptr : a.place.u8(),
                          static_cast<const T*>(a.x.data), a.window, a.channels};
    for_each_row<4>(body, a.window.positions(), a.channels, packs_fit(4, a.channels, {a.y, a.x}),
                    queue);
  });
}

void run_cuda(const MaxPoolBackward& a, Queue& queue) {
  with_activation(a.dx.type, [&](auto element) {
    using T = decltype(element);
    const SpreadMaxBody<T> body{static_cast<T*>(a.dx.data), static_cast<const T*>(a.dy.data),
                                a.place.u8(), a.window, a.channels};
    for_each_row<4>(body, a.window.pixels(), a.channels, packs_fit(4, a.channels, {a.dx, a.dy}),
                    queue);
  });
}

}  // namespace kernels
