// SPDX-License-Identifier: Apache-2.0
// The limit of this process's address space (ulimit -v, and what batch systems make of a job's
// memory). At this limit libraries crash instead of failing: MPI, HDF5 and the code generator of
// oneDNN do not look whether they got their memory. So what is needed is compared with what is left
// beforehand, and refused with its purpose and the way out.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "base/error.hpp"

namespace base {

struct AddressSpace {
  int64_t limit = 0;  // bytes; 0: there is none
  int64_t used = 0;   // bytes now
};
AddressSpace address_space();

// Gives all threads one heap if the address space is limited. By default the C library reserves 64
// MiB for each thread's own.
void share_heap_if_limited();

// Throws Error(Exit::mesh) if less than `bytes` is left below the limit. `purpose`: of what needs
// them, and which keys make it less.
void need_address_space(int64_t bytes, const std::string& purpose);

// Address space that the stacks of so many threads take.
int64_t stack_bytes(int64_t threads);

// Returns the Error that stands for another exception: Exit::mesh where memory or threads ran out,
// else Exit::internal.
Error error_of(const std::exception& e);

}  // namespace base
