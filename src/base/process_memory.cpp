// SPDX-License-Identifier: Apache-2.0
#include "base/process_memory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace base {
namespace {

// Returns the bytes of a line "NAME:  123 kB"; 0 if the text has no such line.
int64_t value_of(std::string_view status, std::string_view name) {
  for (size_t at = status.find(name); at != status.npos; at = status.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at > 0 && status[at - 1] != '\n') || end >= status.size() || status[end] != ':') continue;
    const size_t digits = status.find_first_not_of(" \t", end + 1);
    int64_t value = 0;
    if (digits != status.npos)
      std::from_chars(status.data() + digits, status.data() + status.size(), value);
    return value << 10;
  }
  return 0;
}

// Reads the beginning of a file without allocating, because this is called where memory ran out.
std::string_view beginning_of(const char* path, char* buffer, size_t size) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t bytes = ::read(file, buffer, size);
  ::close(file);
  return {buffer, bytes > 0 ? size_t(bytes) : 0};
}

ProcessMemory of_text(std::string_view status) {
  return {.resident = value_of(status, "VmRSS"),
          .peak = value_of(status, "VmHWM"),
          .anonymous = value_of(status, "RssAnon"),
          .file = value_of(status, "RssFile"),
          .shared = value_of(status, "RssShmem"),
          .swapped = value_of(status, "VmSwap"),
          .address_space = value_of(status, "VmSize")};
}

}  // namespace

ProcessMemory process_memory_of(const std::string& status) { return of_text(status); }

ProcessMemory process_memory() {
  char buffer[4096];
  return of_text(beginning_of("/proc/self/status", buffer, sizeof buffer));
}

int64_t resident_bytes() {
  char buffer[128];
  const std::string_view text = beginning_of("/proc/self/statm", buffer, sizeof buffer);
  int64_t pages = 0;
  const size_t blank = text.find(' ');
  if (blank != text.npos)
    std::from_chars(text.data() + blank + 1, text.data() + text.size(), pages);
  return pages * int64_t(::sysconf(_SC_PAGESIZE));
}

}  // namespace base
