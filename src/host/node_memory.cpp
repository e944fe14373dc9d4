// SPDX-License-Identifier: Apache-2.0
#include "host/node_memory.hpp"

#include <charconv>
#include <fstream>
#include <sstream>

namespace host {
namespace {

// Returns the number after "NAME:"; 0 if the text has no such line.
int64_t value_of(const std::string& meminfo, const std::string& name) {
  const size_t line = meminfo.find(name + ":");
  if (line == meminfo.npos || (line > 0 && meminfo[line - 1] != '\n')) return 0;
  const size_t digits = meminfo.find_first_of("0123456789", line);
  int64_t value = 0;
  if (digits != meminfo.npos)
    std::from_chars(meminfo.data() + digits, meminfo.data() + meminfo.size(), value);
  return value;
}

}  // namespace

NodeMemory node_memory_of(const std::string& meminfo) {
  return {value_of(meminfo, "MemTotal"), value_of(meminfo, "MemAvailable")};
}

NodeMemory node_memory() {
  std::ifstream file("/proc/meminfo");
  std::ostringstream text;
  text << file.rdbuf();
  return node_memory_of(text.str());
}

}  // namespace host
