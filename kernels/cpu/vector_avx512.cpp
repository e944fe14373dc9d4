// SPDX-License-Identifier: Apache-2.0
// The vector loops for AVX-512; they run only on CPUs that have it. Headers with inline functions
// come before the pragma: the linker could use AVX-512 versions of such functions in other files.

// GCC 12's own AVX-512 intrinsics leave a register undefined on purpose. GCC warns about it when
// they are inlined (GCC bug 105593).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/vector_table.hpp"

// KERNELS_AVX512 selects the wide half of vector_math.hpp. In C++, GCC 12 does not define
// __AVX512F__ after the pragma.
#define KERNELS_AVX512
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512")
#endif

#include "kernels/cpu/attention_head.hpp"
#include "kernels/cpu/vector_loops.hpp"

namespace kernels {

const VectorTable kAvx512Table = vector_loops<Log::library>("avx512");
const VectorTable kAvx512PortableTable = vector_loops<Log::own>("avx512_portable");

}  // namespace kernels

#ifdef __clang__
#pragma clang attribute pop
#endif
