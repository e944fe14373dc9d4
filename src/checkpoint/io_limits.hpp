// SPDX-License-Identifier: Apache-2.0
// How each rank reads and writes a checkpoint file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

namespace checkpoint {

struct IoLimits {
  int64_t threads = 1;        // that read and prove a file, or prove what was written
  int64_t inflight_mb = 128;  // of bytes that a restore has read but not proved
  bool mpio = false;          // by HDF5's MPI-IO driver, with the two members below (driver.hpp)
  bool collective = true;
  std::map<std::string, std::string> hints;
  int64_t stripes = 0;  // of new files on Lustre; 0: the file system's default
  // Returns the bytes of one read, a multiple of `block`. A thread proves the data of one read
  // while the next one runs, so two reads of each thread are in flight.
  int64_t largest_read(int64_t block) const {
    constexpr int64_t kMost = 64 << 20;  // larger reads are no faster
    return std::clamp((inflight_mb << 20) / (2 * threads) / block * block, block, kMost);
  }
};

}  // namespace checkpoint
