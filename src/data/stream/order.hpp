// SPDX-License-Identifier: Apache-2.0
// Maps each position of a data set's stream to a sample. The map is a pure function: resuming
// anywhere costs nothing, and ranks, threads and restarts cannot change it. A position is the
// number of examples since the start of training.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "data/stream/permutation.hpp"

namespace data {

enum class Shuffle {
  none,   // the source's order
  exact,  // every epoch permutes all samples anew
  // Every epoch permutes runs of neighbours anew and mixes the samples within windows of runs.
  blocks,
};
inline constexpr std::pair<const char*, Shuffle> kShuffleNames[] = {
    {"none", Shuffle::none}, {"exact", Shuffle::exact}, {"blocks", Shuffle::blocks}};

// Shuffle::blocks cuts the set into blocks of `block` neighbours (the last one may be shorter). An
// epoch reads the blocks in random order, `window` of them at a time (the last window may have
// fewer). It reads the samples of a window in random order. Reading then stays within one window of
// neighbours at a time, which suits file systems and their caches.
struct BlockShape {
  int64_t block = 512;   // samples
  int64_t window = 128;  // blocks
};

class Order {
 public:
  Order() = default;
  // `name` separates streams that must not run in step: each data set of a mixture has its own.
  Order(Shuffle shuffle, int64_t size, uint64_t seed, BlockShape shape = {},
        std::string_view name = "");

  int64_t size() const { return size_; }
  int64_t epoch(int64_t position) const { return position / size_; }
  // Returns the sample at this position; every sample appears exactly once in an epoch. Constant
  // time and memory.
  int64_t index(int64_t position) const;

 private:
  int64_t index_in_blocks(int64_t within, const base::Stream& epoch) const;

  Shuffle shuffle_ = Shuffle::none;
  int64_t size_ = 1;
  base::Stream stream_;
  Permutation all_;  // exact: the samples; blocks: the blocks
  BlockShape shape_;
};

}  // namespace data
