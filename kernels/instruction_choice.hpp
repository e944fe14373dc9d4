// SPDX-License-Identifier: Apache-2.0
// The choice of instructions for ops on CPUs, and of bits that do not depend on them. It holds for
// the whole process, and is made before any op runs.
#pragma once

#include <utility>

namespace kernels {

// generic: plain C++. Other processors than x86-64 have no other loops.
enum class Instructions { automatic, generic, avx2, avx512 };
inline constexpr std::pair<const char*, Instructions> kInstructionsNames[] = {
    {"auto", Instructions::automatic},
    {"generic", Instructions::generic},
    {"avx2", Instructions::avx2},
    {"avx512", Instructions::avx512}};

// Chooses the widest instructions that ops, and oneDNN, may use. portable: ops use no library and
// no loop whose bits depend on the CPU, and the process its own elementary functions.
// Error(Exit::config) names what this CPU or program lacks.
void choose_instructions(Instructions widest, bool portable);

bool bits_are_portable();

}  // namespace kernels
