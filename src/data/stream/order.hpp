// SPDX-License-Identifier: Apache-2.0
// Which sample stands at which position of a data set's stream: a pure function, so resuming
// anywhere costs nothing and ranks, threads and restarts cannot change it. Position = number of
// examples since the start of training.
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
  none,   // as the source has them
  exact,  // every epoch another permutation of all samples
  // every epoch another permutation of runs of neighbours, samples mixed within windows of such
  // runs
  blocks,
};
inline constexpr std::pair<const char*, Shuffle> kShuffleNames[] = {
    {"none", Shuffle::none}, {"exact", Shuffle::exact}, {"blocks", Shuffle::blocks}};

// Shuffle::blocks: the set is cut into blocks of `block` neighbours (the last one may be shorter).
// An epoch takes the blocks in random order, `window` of them at a time (the last window may have
// fewer), and the samples of a window in random order. So only a window's worth of neighbours is
// read at a time: kind to file systems and to their caches.
struct BlockShape {
  int64_t block = 512;   // samples
  int64_t window = 128;  // blocks
};

class Order {
 public:
  Order() = default;
  // `name` tells apart streams that must not run in step: each data set of a mixture has its own.
  Order(Shuffle shuffle, int64_t size, uint64_t seed, BlockShape shape = {},
        std::string_view name = "");

  int64_t size() const { return size_; }
  int64_t epoch(int64_t position) const { return position / size_; }
  // The sample at this position; within an epoch every sample stands exactly once. Constant time
  // and memory.
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
