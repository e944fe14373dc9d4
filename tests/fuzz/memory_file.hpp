// SPDX-License-Identifier: Apache-2.0
// A file that exists in memory only, for readers that need a path.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::runtime_error("memfd_create");
    for (size_t at = 0; at < content.size();) {
      ssize_t n = ::write(descriptor_, content.data() + at, content.size() - at);
      if (n <= 0) throw std::runtime_error("writing a memory file");
      at += size_t(n);
    }
    // The time is constant, because indexes store it.
    const timespec times[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
    if (::futimens(descriptor_, times) != 0) throw std::runtime_error("futimens");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace fuzz
