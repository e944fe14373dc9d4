// SPDX-License-Identifier: Apache-2.0
// Instruction sets of the CPU, and those that oneDNN may use.
#pragma once

namespace kernels {

bool cpu_has_avx512();
bool cpu_has_avx512_bf16();
// The environment variable ONEDNN_MAX_CPU_ISA may exclude sets from oneDNN.
bool onednn_has_avx512();
bool onednn_has_amx();  // tiles of bf16

}  // namespace kernels
