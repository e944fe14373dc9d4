// SPDX-License-Identifier: Apache-2.0
// The vector loops for x86-64-v3, the least that the build requires of a CPU.
#include <cstdint>

#include "kernels/cpu/attention_head.hpp"
#include "kernels/cpu/vector_loops.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

const VectorTable kAvx2Table = vector_loops<Log::library>("avx2");

}  // namespace kernels
