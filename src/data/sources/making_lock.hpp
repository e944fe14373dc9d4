// SPDX-License-Identifier: Apache-2.0
// Lets one process make a file that takes long, while the others that need it wait.
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "io/files.hpp"

namespace data {

// A lock of this process on the making of an index file. The lock ends with the process, so a
// killed process blocks nobody. On a file system without locks no process waits, and each makes the
// file.
class MakingLock {
 public:
  // Waits until no other process has the lock. `places`: where the file may be; the lock is a file
  // beside the first one that can be written. Throws if the work is cancelled.
  MakingLock(const std::vector<std::string>& places, const std::stop_token& token);
  ~MakingLock() { release(); }
  MakingLock(const MakingLock&) = delete;

  // True if another process had the lock. That process made the file, or failed to.
  bool waited() const { return waited_; }
  bool holds() const { return file_.is_open(); }
  void release();

 private:
  io::File file_;
  bool waited_ = false;
};

}  // namespace data
