// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of rotary positions. A thread turns up to four neighbouring pairs.
#include "kernels/cuda/floats.cuh"
#include "kernels/rotate_heads.hpp"

namespace kernels {
namespace {

constexpr int kPairPack = 4;

template <class T>
struct RotateBody {
  T* x;
  const float* table;
  int64_t heads, half, stride, length;
  float sign;
  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t pair = i % half, head = i / half % heads, row = i / half / heads;
    T* at = x + row * stride + head * (2 * half) + pair;
    const float* cosines = table + row % length * (2 * half) + pair;
    Floats<N> a = load<true, N>(at, N), b = load<true, N>(at + half, N);
    const Floats<N> c = load<true, N>(cosines, N), s = load<true, N>(cosines + half, N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float left = a[k], right = b[k], sine = sign * s[k];
      a[k] = left * c[k] - right * sine;
      b[k] = right * c[k] + left * sine;
    }
    store<true>(at, a, N);
    store<true>(at + half, b, N);
  }
};

}  // namespace

void run_cuda(const RotateHeads& a, Queue& queue) {
  with_activation(a.x.type, [&](auto element) {
    using T = decltype(element);
    const RotateBody<T> body{
        static_cast<T*>(a.x.data), a.table.f32(), a.heads, a.head_dim / 2, a.row(), a.length(),
        a.backward ? -1.0f : 1.0f};
    const int64_t pairs = a.rows * a.heads * (a.head_dim / 2);
    // Packs lie within a head, and begin at multiples of their size.
    if (a.head_dim % (2 * kPairPack) == 0 && a.row() % kPairPack == 0)
      for_each_element<kPairPack>(body, pairs, queue, {a.x.data, a.table.data});
    else
      for_each_element<1>(body, pairs, queue, {});
  });
}

}  // namespace kernels
