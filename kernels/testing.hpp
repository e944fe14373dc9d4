// SPDX-License-Identifier: Apache-2.0
// Seams for tests: they override the instruction sets that ops find on the CPU.
#pragma once

namespace kernels {
struct VectorTable;
}

namespace kernels::seams {

// With true, bf16 products run without bf16 instructions; with false, as the CPU allows.
void force_bf16_emulation(bool forced);
// CPUs pack single columns with gaps as for oneDNN 3, whatever the version.
void force_packed_columns(bool forced);

// Makes ops use these loops; nullptr returns to the widest that the CPU runs.
void force_vector_table(const VectorTable* table);

}  // namespace kernels::seams
