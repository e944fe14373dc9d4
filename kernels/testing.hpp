// SPDX-License-Identifier: Apache-2.0
// Seams for tests: they replace what the CPU's ops find out about the CPU.
#pragma once

namespace kernels {
struct VectorTable;
}

namespace kernels::seams {

// Makes bf16 products run without bf16 instructions (true), or as the CPU has them again (false).
void force_bf16_emulation(bool forced);

// Makes ops use these loops; nullptr goes back to the widest that the CPU runs.
void force_vector_table(const VectorTable* table);

}  // namespace kernels::seams
