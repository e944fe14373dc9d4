// SPDX-License-Identifier: Apache-2.0
// Host memory for copies to or from a device.
#pragma once

#include <cstdint>
#include <memory>

namespace device {

enum class Kind { cpu, cuda, plan };

// Memory is pinned for kind cuda, so that copies run without the host, and ordinary otherwise. Its
// initial contents are undefined, and no ledger counts it.
class HostBuffer {
 public:
  HostBuffer() : HostBuffer(Kind::cpu, 0) {}
  HostBuffer(Kind kind, int64_t bytes);
  char* data() const { return static_cast<char*>(data_.get()); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    Kind kind = Kind::cpu;
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace device
