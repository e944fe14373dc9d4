// SPDX-License-Identifier: Apache-2.0
// All buffers that this process has now, of all ledgers. When memory has run out, this table can be
// read without a lock and without an allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/types.hpp"

namespace device {

// Add a buffer to the table and remove it. Buffers beyond the size of the table are left out.
void add_live_buffer(const void* data, const std::string& category, int64_t bytes, bool on_gpu);
void remove_live_buffer(const void* data);

// Writes lines about the categories and the largest buffers (base/shortage.hpp).
size_t describe_live_buffers(char* buffer, size_t size);

}  // namespace device
