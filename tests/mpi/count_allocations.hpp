// SPDX-License-Identifier: Apache-2.0
// Counts allocations while it watches, separately for the program's own code and for libraries.
// count_allocations.cpp replaces malloc and operator new.
#pragma once

#include <atomic>
#include <cstdint>

// Nothing is counted with a sanitizer, because it has its own malloc.
#if !defined(__SANITIZE_ADDRESS__)
#define COUNT_ALLOCATIONS 1
#endif

namespace allocations {

extern std::atomic<bool> watching;
extern std::atomic<int64_t> by_us, by_libraries;

// A stack of calls, innermost first.
constexpr int kFrames = 24;
struct Place {
  void* frames[kFrames];
  int count = 0;
};
extern Place first_by_us;

// watch(true) sets the counts to zero.
void watch(bool on);

}  // namespace allocations
