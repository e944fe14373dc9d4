// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of scale_pixels.
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/pixel_value.cuh"
#include "kernels/scale_pixels.hpp"

namespace kernels {
namespace {

template <class T, class Pixel>
struct PixelBody {
  T* y;
  const Pixel* x;
  PixelRange range;  // of bytes

  template <int N>
  __device__ void run(int64_t i) const {
    Floats<N> v = load<true, N>(x + i, N);
    if constexpr (sizeof(Pixel) == 1) {
      const int channel = int(i % 3);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = pixel_value(range, v[k], (channel + k) % 3);
    }
    store<true>(y + i, v, N);
  }
};

template <class T, class Pixel>
void scale(const ScalePixels& a, Queue& queue) {
  const PixelBody<T, Pixel> body{static_cast<T*>(a.y.data), static_cast<const Pixel*>(a.x.data),
                                 a.range};
  for_each_element<4>(body, a.y.count, queue, {a.y.data, a.x.data});
}

}  // namespace

void run_cuda(const ScalePixels& a, Queue& queue) {
  with_activation(a.y.type, [&](auto element) {
    using T = decltype(element);
    if (a.x.type == DType::u8)
      scale<T, uint8_t>(a, queue);
    else
      scale<T, float>(a, queue);
  });
}

}  // namespace kernels
