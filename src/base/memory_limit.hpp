// SPDX-License-Identifier: Apache-2.0
// The limit of this process's address space (ulimit -v; batch systems set it from a job's memory).
// At the limit, libraries crash instead of failing: MPI, HDF5 and oneDNN's code generator do not
// check their allocations. The program therefore compares each large need with the space left, and
// refuses it with its purpose and a remedy.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "base/error.hpp"

namespace base {

struct AddressSpace {
  int64_t limit = 0;  // bytes; 0 = no limit
  int64_t used = 0;   // bytes used now
};
AddressSpace address_space();

// Gives all threads one heap if the address space is limited. By default the C library reserves 64
// MiB for a heap of each thread.
void share_heap_if_limited();

// Throws Error(Exit::mesh) if less than `bytes` is left below the limit. `purpose` names the use
// and the keys that reduce it.
void need_address_space(int64_t bytes, const std::string& purpose);

// Returns the address space of the stacks of `threads` threads, in bytes.
int64_t stack_bytes(int64_t threads);

// Converts another exception to an Error: Exit::mesh if memory or threads ran out, else
// Exit::internal.
Error error_of(const std::exception& e);

}  // namespace base
