// SPDX-License-Identifier: Apache-2.0
// The instruction sets that the CPU and oneDNN have.
#pragma once

namespace kernels {

bool cpu_has_avx512();
bool cpu_has_avx512_bf16();
bool onednn_has_avx512();  // ONEDNN_MAX_CPU_ISA limits it

}  // namespace kernels
