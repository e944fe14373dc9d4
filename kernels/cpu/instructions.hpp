// SPDX-License-Identifier: Apache-2.0
// Instruction sets that oneDNN may use.
#pragma once

namespace kernels {

// The environment variable ONEDNN_MAX_CPU_ISA may exclude sets from oneDNN.
bool onednn_has_avx512();
bool onednn_has_amx();  // tiles of bf16

}  // namespace kernels
