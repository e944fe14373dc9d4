// SPDX-License-Identifier: Apache-2.0
// All-reduces of memory that the ranks of a node share. Each rank adds up one part of all ranks'
// numbers where they lie, and writes the sums back to all of them. No message is sent. Only the
// communicator includes this file.
//
// Sums follow the binary tree over the ranks, neighbours first. A number of ranks that is no power
// of two leaves the tree's right end out. These are the bits of Open MPI's all-reduce in place.
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>
#include <vector>

#include "comm/node_memory.hpp"
#include "device/types.hpp"

namespace comm {

// The ranks of a communicator, all on one node, and how far each of them is. All begin the same
// exchanges in the same order, and add up their parts in that order, so two counts tell all.
class SharedGroup {
 public:
  // All ranks of the node call, each with its group. Null if the group's ranks share no memory.
  static std::unique_ptr<SharedGroup> make(NodeMemory& node, MPI_Comm comm);

  int size() const { return int(node_ranks_.size()); }
  int rank() const { return rank_; }
  int node_rank(int rank) const { return node_ranks_[size_t(rank)]; }

  // Counts this rank's next exchange, whose numbers all lie in their memory. Wakes the other ranks
  // if they have waited for this one. Returns the exchange's number.
  int64_t begin();
  bool all_began(int64_t exchange) const { return least(&Progress::began) > exchange; }
  bool all_summed(int64_t exchange) const { return least(&Progress::summed) > exchange; }
  // True if this rank has added up its parts of all exchanges before this one, and not of it.
  bool is_next(int64_t exchange) const { return own().summed.load() == exchange; }
  // Counts this rank's part of its next exchange. Wakes the other ranks if it was the last part.
  void summed();

 private:
  // Lies in shared memory. Only the rank it belongs to writes it.
  struct Progress {
    alignas(64) std::atomic<int64_t> began;
    alignas(64) std::atomic<int64_t> summed;
  };
  SharedGroup() = default;
  Progress& own() const { return *progress_[size_t(rank_)]; }
  int64_t least(std::atomic<int64_t> Progress::*count) const;
  void ring_others();

  NodeMemory* node_ = nullptr;
  std::shared_ptr<SharedParts> memory_;
  std::vector<Progress*> progress_;
  std::vector<int> node_ranks_;
  int rank_ = 0;
};

// One all-reduce, which never waits: `advance` does what can be done now.
class SharedSum {
 public:
  // `view` lies in this rank's part of `parts`, and at the same place in those of the others.
  void begin(SharedGroup& group, const SharedParts& parts, int node_rank, const device::View& view);
  // Adds up one piece, if it is this rank's turn. True when all ranks have the sums.
  bool advance();
  // True if there is nothing to do before another rank rings this one's bell.
  bool idle() const;

 private:
  template <class T>
  void add_up(int64_t begin, int64_t count);

  SharedGroup* group_ = nullptr;
  int64_t number_ = 0, next_ = 0, end_ = 0;  // elements of this rank's part
  device::DType type_ = device::DType::f32;
  std::vector<char*> views_;  // of the group's ranks
};

}  // namespace comm
