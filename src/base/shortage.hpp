// SPDX-License-Identifier: Apache-2.0
// Records the facts when memory runs out. It does so at once, because the stack is unwound and
// buffers are freed before the error is reported. Nothing here allocates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace base {

// Records the requested bytes (0: not known), their purpose, rank and thread, the memory of the
// process, and the lines of the sources. Keeps only the process's first shortage. Never throws.
void note_shortage(int64_t bytes, const char* purpose) noexcept;
// Returns lines that begin with "memory   "; "" if memory never ran out.
const char* shortage_text() noexcept;

// Forgets a shortage. Only tests call it.
void forget_shortage();

// Adds a function that writes lines about memory into a buffer and returns their length. Call it
// before other threads start.
void add_shortage_source(size_t (*describe)(char* buffer, size_t size));

// From now on a failing `new` on any thread is noted before it throws std::bad_alloc.
void note_failing_new();

}  // namespace base
