// SPDX-License-Identifier: Apache-2.0
// The memory of this node, as Linux counts it.
#pragma once

#include <cstdint>
#include <string>

namespace host {

struct NodeMemory {
  int64_t total_kib = 0, available_kib = 0;  // 0: not known
};
// Reads the text of /proc/meminfo.
NodeMemory node_memory_of(const std::string& meminfo);
NodeMemory node_memory();

}  // namespace host
