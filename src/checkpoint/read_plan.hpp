// SPDX-License-Identifier: Apache-2.0
// Lists the bytes that a rank reads of a file, and compares them with the checksums. The drivers
// (driver.hpp) read them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "checkpoint/catalogue.hpp"
#include "checkpoint/checksum.hpp"
#include "shard/parameter.hpp"

namespace checkpoint {

// Bytes [begin, end) of a tensor and the memory to fill.
struct WantedBytes {
  const Entry* entry;
  int64_t begin, end;
  char* data;
  int64_t offset() const { return entry->offset + begin; }
};

// Sorted by file offset, so that the disk can read ahead.
std::vector<WantedBytes> wanted_of(const std::string& path, const Manifest& manifest,
                                   const std::vector<shard::TensorSlice>& tensors);

// Whole blocks [first, end) of a tensor, read straight into the wanted memory; or one block that is
// wanted only in part.
struct Portion {
  const WantedBytes* wanted;
  int64_t first, end;
  bool whole;
  int64_t begin() const { return first * kBlock; }  // within the tensor
  int64_t bytes() const { return std::min(end * kBlock, wanted->entry->bytes) - begin(); }
  int64_t offset() const { return wanted->entry->offset + begin(); }
};

std::vector<Portion> portions_of(const std::vector<WantedBytes>& wanted, int64_t largest_read);

// Portions that are read and proved together. Blocks that are wanted in part go to memory of the
// batch first.
class Batch {
 public:
  // Chooses the memory that each portion is read into.
  void take(std::span<const Portion> portions);
  const std::span<const Portion>& portions() const { return portions_; }
  char* target(size_t i) const { return targets_[i]; }
  // Throws Error(Exit::checkpoint) if a block fails its checksum. Completes the wanted memory.
  void verify(const Manifest& manifest) const;

 private:
  std::span<const Portion> portions_;
  std::vector<char*> targets_;
  std::vector<char> edges_;
};

}  // namespace checkpoint
