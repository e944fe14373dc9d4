// SPDX-License-Identifier: Apache-2.0
// Loops over all elements of tensors. A thread moves several neighbours, a pack, in one access of
// up to 16 bytes.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/bf16_value.hpp"
#include "kernels/cuda/launch.cuh"

namespace kernels {

// N neighbours in registers, aligned so that one access moves up to 16 bytes of them.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T at[N];
};
// Loads a pack. `from` must have the alignment of a pack.
template <int N, class T>
__device__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <class T, int N>
__device__ void store_pack(T* to, const Pack<T, N>& values) {
  *reinterpret_cast<Pack<T, N>*>(to) = values;
}

template <int N, class Body>
__global__ void each_pack(Body body, int64_t count) {
  int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i + N <= count)
    body.template run<N>(i);
  else
    for (; i < count; ++i) body.template run<1>(i);
}

// Calls body.run<N>(i) for the elements [i, i + N) of every pack, and run<1>(i) for the remainder.
// If one of the `pointers` is not aligned to 16 bytes, it calls run<1>(i) for all elements. Calls
// have no order.
template <int N, class Body>
void for_each_element(const Body& body, int64_t count, Queue& queue,
                      std::initializer_list<const void*> pointers) {
  constexpr int kThreads = 256;
  bool aligned = true;
  for (const void* p : pointers) aligned = aligned && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  if (aligned)
    launch(each_pack<N, Body>, blocks_for(count, kThreads * N), dim3(kThreads), 0, queue, body,
           count);
  else
    launch(each_pack<1, Body>, blocks_for(count, kThreads), dim3(kThreads), 0, queue, body, count);
}

}  // namespace kernels
