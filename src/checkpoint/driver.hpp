// SPDX-License-Identifier: Apache-2.0
// How bytes travel between the ranks' memory and a checkpoint file. The file is the same, whichever
// driver wrote it, and each driver reads it (checkpoint.driver).
//   direct_driver  each rank at known offsets, in its own threads; no HDF5, no MPI
//   mpio_driver    through HDF5's MPI-IO driver, by the main threads of all ranks
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/catalogue.hpp"
#include "comm/comm.hpp"
#include "comm/together.hpp"
#include "io/files.hpp"

namespace checkpoint {

// A part of a tensor that this rank writes.
struct Piece {
  int entry;
  int64_t begin, end;  // bytes within the tensor
  const char* data;
  std::vector<uint64_t> whole = {};  // hashes of the blocks wholly inside the part, in order
};

// How far a rank has written its part of a file, for threads that read it back meanwhile.
class WrittenUpTo {
 public:
  // All of the rank's bytes before `offset` are in the file.
  void advance(int64_t offset) {
    offset_ = offset;
    offset_.notify_all();
  }
  void fail() { advance(kFailed); }
  // Waits until the bytes before `offset` are in the file. Returns false if they never will be.
  bool wait_for(int64_t offset) const {
    for (int64_t now = offset_; now < offset; now = offset_) {
      if (now == kFailed) return false;
      offset_.wait(now);
    }
    return true;
  }

 private:
  static constexpr int64_t kFailed = -1;
  std::atomic<int64_t> offset_{0};
};

class Driver {
 public:
  virtual ~Driver() = default;
  // True if the main threads of all ranks call write() together, and errors may differ between
  // them. The file then has its structure already. Otherwise each rank's thread calls it.
  virtual bool together() const = 0;
  // Makes an empty file. Rank 0 calls, in its main thread if together().
  virtual io::File create(const std::string& path) const = 0;
  // Writes pieces, which are ordered by their offsets in the file. A driver that does not write
  // together() advances `written` after each portion.
  virtual void write(io::File& file, const FileLayout& layout, const std::vector<Piece*>& order,
                     WrittenUpTo& written) = 0;
  // Fills this rank's parts and proves them. The main threads of all ranks call. Meanwhile they
  // call `poll`, whose error is thrown on all of them. Returns each rank's reason to refuse the
  // file, "" if it has none. `bytes`: read by this rank.
  virtual std::vector<std::string> read(const std::string& path, const Manifest& manifest,
                                        const std::vector<shard::TensorSlice>& tensors,
                                        const comm::Poll& poll, int64_t& bytes) = 0;
};

std::unique_ptr<Driver> make_driver(comm::Comm& comm, const IoLimits& io);

std::unique_ptr<Driver> make_direct_driver(comm::Comm& comm, const IoLimits& io);
std::unique_ptr<Driver> make_mpio_driver(comm::Comm& comm, const IoLimits& io);
// Runs `read`. Returns the text of its error if the file is to blame for the error, else "".
std::string reason_of(const std::function<void()>& read);

}  // namespace checkpoint
