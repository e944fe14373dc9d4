// SPDX-License-Identifier: Apache-2.0
// Loads and stores of activations in CUDA kernels. Neighbours of type f32, bf16 (as uint16_t) or
// f16 become floats in registers, and back.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/bf16_value.hpp"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch_shapes.hpp"
#include "kernels/f16_value.hpp"

namespace kernels {

// N neighbours as floats, in registers.
template <int N>
struct Floats {
  float at[N];
  __device__ float& operator[](int i) { return at[i]; }
  __device__ float operator[](int i) const { return at[i]; }
};

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(uint8_t x) { return float(x); }
__device__ inline float widen(uint16_t bits) { return loops::to_float(loops::Bf16{bits}); }
__device__ inline float widen(loops::F16 x) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(x.bits));
#else
  return loops::to_float(x);
#endif
}

// Rounds to the nearest, ties to even, as the CPU does.
__device__ inline void narrow(float x, float& out) { out = x; }
__device__ inline void narrow(float x, uint16_t& out) {
#ifdef __CUDA_ARCH__
  out = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  out = loops::round_to_bf16(x).bits;
#endif
}

__device__ inline void narrow(float x, loops::F16& out) {
#ifdef __CUDA_ARCH__
  out.bits = __half_as_ushort(__float2half_rn(x));
#else
  out = loops::round_to_f16(x);
#endif
}

// Calls f(element) with an element of the type that represents activations of `type`.
template <class F>
void with_activation(DType type, const F& f) {
  if (type == DType::bf16)
    f(uint16_t{});
  else if (type == DType::f16)
    f(loops::F16{});
  else
    f(float{});
}

// Loads N elements at p: as a pack if kAligned, else one by one, with 0 from element `left` on.
template <bool kAligned, int N, class T>
__device__ Floats<N> load(const T* p, int64_t left) {
  Floats<N> out;
  if constexpr (kAligned) {
    const Pack<T, N> pack = load_pack<N>(p);
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = widen(pack.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = i < left ? widen(p[i]) : 0.0f;
  }
  return out;
}
template <bool kAligned, int N, class T>
__device__ void store(T* p, const Floats<N>& x, int64_t left) {
  if constexpr (kAligned) {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) narrow(x[i], pack.at[i]);
    store_pack(p, pack);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < left) narrow(x[i], p[i]);
  }
}

}  // namespace kernels
