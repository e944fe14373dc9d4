// SPDX-License-Identifier: Apache-2.0
// The portable vector loops in plain C++, for CPUs other than x86-64. Tests compile them there too.
#define KERNELS_GENERIC
#define KERNELS_WIDE

#include <cstdint>

#include "kernels/cpu/attention_head.hpp"
#include "kernels/cpu/vector_loops.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

const VectorTable kGenericWideTable = vector_loops<Log::own>("generic_wide");

}  // namespace kernels
