// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of average pooling and its gradient. Each thread reads the windows of its own
// result.
#include "kernels/average_pool.hpp"
#include "kernels/cuda/pool.cuh"

namespace kernels {
namespace {

// Divides a sum of elements of x by the window's number of pixels: the elements in the window at y
// (pool), or the elements at the windows that contain y (spread).
template <bool kSpread, class Y, class X>
struct AverageBody {
  Y* y;
  const X* x;
  Window window;
  int64_t channels;
  template <bool kAligned, int N>
  __device__ void run(int64_t row, int64_t channel, int64_t left) const {
    Floats<N> sum{};
    auto add = [&](int64_t from, int) {
      const Floats<N> v = load<kAligned, N>(x + from * channels + channel, left);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += v[k];
    };
    if constexpr (kSpread)
      for_windows_with(window, row, add);
    else
      for_pixels_of(window, row, add);
    const float pixels = float(window.kernel_height * window.kernel_width);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] /= pixels;
    store<kAligned>(y + row * channels + channel, sum, left);
  }
};

template <bool kSpread>
void average(View y, View x, const Window& window, int64_t channels, Queue& queue) {
  const int64_t rows = kSpread ? window.pixels() : window.positions();
  with_activation(y.type, [&](auto to) {
    with_activation(x.type, [&](auto from) {
      using Y = decltype(to);
      using X = decltype(from);
      const AverageBody<kSpread, Y, X> body{static_cast<Y*>(y.data), static_cast<const X*>(x.data),
                                            window, channels};
      for_each_row<4>(body, rows, channels, packs_fit(4, channels, {y, x}), queue);
    });
  });
}

}  // namespace

void run_cuda(const AveragePoolForward& a, Queue& queue) {
  average<false>(a.y, a.x, a.window, a.channels, queue);
}

void run_cuda(const AveragePoolBackward& a, Queue& queue) {
  average<true>(a.dx, a.dy, a.window, a.channels, queue);
}

}  // namespace kernels
