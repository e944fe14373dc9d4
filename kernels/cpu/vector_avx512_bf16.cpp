// SPDX-License-Identifier: Apache-2.0
// The vector loops for AVX-512 with bf16 instructions; they run only on CPUs that have them.
// vector_avx512.cpp explains the order of includes and pragmas.

// GCC 12's own AVX-512 intrinsics leave a register undefined on purpose. GCC warns about it when
// they are inlined (GCC bug 105593).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/vector_table.hpp"

// KERNELS_AVX512_BF16 selects the instruction for pairs in add_product of vector_math.hpp.
#define KERNELS_AVX512
#define KERNELS_AVX512_BF16
#ifdef __clang__
#pragma clang attribute push(                                                     \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,prefer-vector-width=512")
#endif

#include "kernels/cpu/attention_head.hpp"
#include "kernels/cpu/vector_loops.hpp"

namespace kernels {

const VectorTable kAvx512Bf16Table = vector_loops<Log::library>("avx512_bf16");

}  // namespace kernels

#ifdef __clang__
#pragma clang attribute pop
#endif
