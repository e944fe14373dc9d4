// SPDX-License-Identifier: Apache-2.0
// Files of a run other than its checkpoints. If the disk is full, they wait in memory, with a
// warning, and are written as soon as there is room. The main thread alone writes these files.
#pragma once

#include <string>

#include "io/files.hpp"

namespace io {

// A file that grows by whole lines.
class WaitingLines {
 public:
  // Opens the file at the first line. `most`: bytes that may wait; later lines are lost, with a
  // warning. 0: no limit.
  explicit WaitingLines(std::string path, int64_t most = 0);
  WaitingLines(const WaitingLines&) = delete;
  ~WaitingLines();  // tries once more, and warns if lines still wait

  const std::string& path() const { return path_; }
  // Appends the waiting lines and these lines, or none of them.
  void append(const std::string& lines);
  // Makes sure that what was appended is on the disk, as far as there is room.
  void sync();
  // Begins the file again if it was removed or replaced, and returns true in that case.
  bool keep();
  // Takes over a file with these bytes, which has all lines.
  void take(File file, int64_t bytes);
  const File& file() const { return file_; }
  int64_t length() const { return length_; }  // bytes of whole lines in the file
  bool waits() const { return !unwritten_.empty(); }
  bool retry();  // returns true if nothing waits any more
  void forget() { unwritten_.clear(); }

 private:
  void open();

  std::string path_;
  int64_t most_;
  File file_;
  int64_t length_ = 0;
  std::string unwritten_;
  bool torn_ = false;  // the file may have bytes behind length_
  bool loses_ = false;
  double warned_s_ = 0;
};

// Replaces a file as write_file_atomically does, now or when there is room. Makes its folder.
void write_or_wait(const std::string& path, const std::string& content, bool durable = true);

// Tries to write everything that waits. Returns the number of files that still do.
size_t write_waiting();
// Tries once more, and names in a warning each whole file that is lost.
void give_up_waiting();
// Forgets all that waits, because its folder now belongs to another job.
void forget_waiting();
// Returns the last problem that made a file wait, for an error.
const std::string& waiting_problem();

}  // namespace io
