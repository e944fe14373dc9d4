// SPDX-License-Identifier: Apache-2.0
// Memory between forbidden pages, closed to the host while no kernel runs.
#pragma once

#include <cstddef>

namespace cuda_on_cpu {

class GuardedMemory {
 public:
  // Fills the memory with NaN; its end is at most 255 bytes before a forbidden page.
  explicit GuardedMemory(size_t bytes);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void open(bool opened);
  bool is_open() const { return is_open_; }
  bool holds(const void* address) const;     // forbidden pages included
  bool may_open(const void* address) const;  // forbidden pages left out

 private:
  size_t bytes_;
  char* pages_;
  size_t length_;  // of all pages
  void* data_;
  volatile bool is_open_ = false;
};

}  // namespace cuda_on_cpu
