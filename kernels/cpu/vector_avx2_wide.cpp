// SPDX-License-Identifier: Apache-2.0
// The portable vector loops for x86-64-v3, the least that the build requires of a CPU.
#define KERNELS_WIDE

#include <cstdint>

#include "kernels/cpu/attention_head.hpp"
#include "kernels/cpu/vector_loops.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

const VectorTable kAvx2WideTable = vector_loops<Log::own>("avx2_wide");

}  // namespace kernels
