// SPDX-License-Identifier: Apache-2.0
// All-reduces of memory that the ranks of a node share. Ranks add up pieces of all ranks' numbers
// in place, and write the sums back to all ranks. No message is sent. Only the communicator and its
// test include this file.
//
// Each rank has a part of the pieces. When it has added these up, it takes pieces that the others
// have not begun. So no rank waits until another rank gets its core. Sums follow the binary tree
// over the ranks, neighbours first. If the number of ranks is not a power of two, the tree lacks
// its right end. The results have the same bits as Open MPI's all-reduce in place.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "comm/mpi.hpp"
#include "comm/node_memory.hpp"
#include "device/types.hpp"

namespace comm {

// The ranks of a communicator, all on one node, and how far their exchanges are. All ranks begin
// the same exchanges in the same order.
class SharedGroup {
 public:
  // All ranks of the node call, each with its group. Null if the group's ranks share no memory.
  static std::unique_ptr<SharedGroup> make(NodeMemory& node, MPI_Comm comm);

  int size() const { return int(node_ranks_.size()); }
  int node_rank(int rank) const { return node_ranks_[size_t(rank)]; }
  void ring_others();

  // An exchange: every rank's part has `pieces`. Counts of pieces are never reset, so the counts of
  // an exchange begin at `first` for each rank.
  struct Exchange {
    int64_t number = 0, first = 0, pieces = 0;
  };
  // Begins this rank's next exchange. All numbers of this rank must be in shared memory by then.
  Exchange begin(int64_t pieces);
  bool all_began(const Exchange& exchange) const;
  // Takes a piece that no rank has taken. Returns its number; -1: none is left, or some rank has
  // not begun.
  int64_t take(const Exchange& exchange);
  bool can_take(const Exchange& exchange) const;
  // Counts a piece whose sums all ranks have. Wakes the other ranks if it was the last one.
  void summed(const Exchange& exchange);
  bool all_summed(const Exchange& exchange) const;

 private:
  static constexpr int64_t kSlots = 64;  // exchanges in flight at most; they use slots in turn
  // Stored in shared memory, one for each rank.
  struct Shared {
    alignas(64) std::atomic<int64_t> began;  // exchanges
    struct alignas(64) Slot {
      std::atomic<int64_t> taken;   // pieces of this rank's part
      std::atomic<int64_t> summed;  // pieces of all ranks, counted in the first rank's slot
    } slots[kSlots];
  };
  SharedGroup() = default;
  bool has_left(const Exchange& exchange, int rank) const;
  std::atomic<int64_t>& taken(const Exchange& exchange, int rank) const {
    return shared_[size_t(rank)]->slots[exchange.number % kSlots].taken;
  }
  std::atomic<int64_t>& count_of_summed(const Exchange& exchange) const {
    return shared_.front()->slots[exchange.number % kSlots].summed;
  }

  NodeMemory* node_ = nullptr;
  std::shared_ptr<SharedParts> memory_;
  std::vector<Shared*> shared_;  // by rank of the group
  std::vector<int> node_ranks_;
  int rank_ = 0;
  std::vector<int64_t> first_ = std::vector<int64_t>(kSlots, 0);  // of each slot's next exchange
};

// One all-reduce, which never waits: `advance` does what can be done now.
//
// The rank that begins last wakes the others when it advances. A wake takes a system call of 20 us,
// and begin() runs in the thread that computes.
class SharedSum {
 public:
  // `view` is in this rank's part of `parts`, and at the same offset in the other ranks' parts.
  void begin(SharedGroup& group, const SharedParts& parts, int node_rank, const device::View& view);
  // Adds up one piece, if one is left. True when all ranks have the sums.
  bool advance();
  // True if there is nothing to do before another rank rings this one's bell.
  bool idle() const;

 private:
  template <class T>
  void add_up(int64_t begin, int64_t count);

  SharedGroup* group_ = nullptr;
  SharedGroup::Exchange exchange_;
  bool wakes_ = false;  // the others, who may sleep
  int64_t count_ = 0;   // elements
  device::DType type_ = device::DType::f32;
  std::vector<char*> views_;  // of the group's ranks
};

}  // namespace comm
