// SPDX-License-Identifier: Apache-2.0
// Functions of all threads of a warp or a block: sums and maxima in a fixed order, and dynamic
// shared memory. Blocks have whole warps, numbered along x.
#pragma once

#include "device/cuda.hpp"

namespace kernels {

constexpr unsigned kAllLanes = 0xffffffffu;

// Returns the sum in every lane. It adds pairs 16 apart first.
template <class T>
__device__ T warp_sum(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}
template <class T>
__device__ T warp_max(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    T other = __shfl_xor_sync(kAllLanes, x, distance);
    x = x > other ? x : other;
  }
  return x;
}

// Shared memory with one value per warp.
template <class T>
struct BlockShared {
  T warp_values[32];
};

// Returns the sum in every thread, in an order that follows from the block's size alone. All
// threads of the block must call it; `shared` may be used again at once.
template <class T>
__device__ T block_sum(T x, BlockShared<T>& shared) {
  int lane = int(threadIdx.x % 32), warps = int(blockDim.x / 32);
  x = warp_sum(x);
  if (lane == 0) shared.warp_values[threadIdx.x / 32] = x;
  __syncthreads();
  x = warp_sum(lane < warps ? shared.warp_values[lane] : T(0));
  __syncthreads();
  return x;
}
template <class T>
__device__ T block_max(T x, BlockShared<T>& shared) {
  int lane = int(threadIdx.x % 32), warps = int(blockDim.x / 32);
  x = warp_max(x);
  if (lane == 0) shared.warp_values[threadIdx.x / 32] = x;
  __syncthreads();
  x = warp_max(shared.warp_values[lane < warps ? lane : 0]);
  __syncthreads();
  return x;
}

// Returns the dynamic shared memory of the launch, 16-byte aligned.
template <class T>
__device__ T* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ float4 block_dynamic_shared[];
  return reinterpret_cast<T*>(block_dynamic_shared);
#else
  return static_cast<T*>(cuda_on_cpu::dynamic_shared());
#endif
}

}  // namespace kernels
