// SPDX-License-Identifier: Apache-2.0
// The memory of this process, as Linux counts it.
#pragma once

#include <cstdint>
#include <string>

namespace base {

// In bytes; 0: not known. anonymous: the heap and what is mapped without a file. file: mapped
// files, which Linux can drop and read again. shared: memory that processes share.
struct ProcessMemory {
  int64_t resident = 0, peak = 0, anonymous = 0, file = 0, shared = 0, swapped = 0,
          address_space = 0;
};
// Reads the text of /proc/self/status.
ProcessMemory process_memory_of(const std::string& status);
ProcessMemory process_memory();
// Returns the resident bytes alone, and reads as little as it can.
int64_t resident_bytes();

}  // namespace base
