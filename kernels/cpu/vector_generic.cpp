// SPDX-License-Identifier: Apache-2.0
// The vector loops in plain C++, for CPUs other than x86-64. Tests compile them there too and
// compare them with the loops for AVX2.
#define KERNELS_GENERIC

#include <cstdint>

#include "kernels/cpu/attention_head.hpp"
#include "kernels/cpu/vector_loops.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

const VectorTable kGenericTable = vector_loops<Log::library>("generic");

}  // namespace kernels
