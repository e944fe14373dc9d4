// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the exchange of positions and channels.
#include "kernels/cuda/elements.cuh"
#include "kernels/transpose_positions.hpp"

namespace kernels {
namespace {

template <class T>
struct TransposeBody {
  T* y;
  const T* x;
  int64_t positions, channels;
  template <int N>
  __device__ void run(int64_t i) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int64_t at = i + k, row = at / positions, p = at % positions;
      y[at] = x[(row / channels * positions + p) * channels + row % channels];
    }
  }
};

template <class T>
void transpose(const TransposePositions& a, Queue& queue) {
  const TransposeBody<T> body{static_cast<T*>(a.y.data), static_cast<const T*>(a.x.data),
                              a.positions, a.channels};
  for_each_element<1>(body, a.x.count, queue, {});
}

}  // namespace

void run_cuda(const TransposePositions& a, Queue& queue) {
  if (device::size_of(a.x.type) == 2)
    transpose<uint16_t>(a, queue);
  else
    transpose<float>(a, queue);
}

}  // namespace kernels
