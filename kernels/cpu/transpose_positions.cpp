// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the exchange of positions and channels.
#include "kernels/transpose_positions.hpp"

#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

template <class T>
void transpose(const TransposePositions& a, Queue& queue) {
  T* y = static_cast<T*>(a.y.data);
  const T* x = static_cast<const T*>(a.x.data);
  const int64_t size = a.positions * a.channels;
  for_ranges(queue, a.batch * a.channels, a.x.count, 1, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      const T* in = x + row / a.channels * size + row % a.channels;
      for (int64_t p = 0; p < a.positions; ++p) y[row * a.positions + p] = in[p * a.channels];
    }
  });
}

}  // namespace

void run_cpu(const TransposePositions& a, Queue& queue) {
  if (device::size_of(a.x.type) == 2)
    transpose<uint16_t>(a, queue);
  else
    transpose<float>(a, queue);
}

}  // namespace kernels
