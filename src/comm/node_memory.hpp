// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks of a node read and write. A rank that is alone on its node has none. Only
// the communicator includes this file.
//
// Each rank makes its part as an anonymous file, and the others open it through /proc. So nothing
// stays behind when a job dies, and no limit of /dev/shm applies.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/bell.hpp"
#include "comm/mpi.hpp"

namespace comm {

// Parts of equal size, one for each rank of the node or of the first rank alone.
struct SharedParts {
  std::vector<char*> of_rank;  // by rank of the node, as this process maps them
  int64_t bytes = 0;
  SharedParts() = default;
  SharedParts(const SharedParts&) = delete;
  ~SharedParts();
};

class NodeMemory {
 public:
  // All ranks of the world call. This and allocate() call MPI, which no other thread may do then.
  NodeMemory();
  ~NodeMemory();
  NodeMemory(const NodeMemory&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Returns why the ranks of this node share no memory; "" if they do, or if there is one rank.
  const std::string& problem() const { return problem_; }

  // Makes zero-filled parts of this size: one of each rank, or one of the first rank. All ranks of
  // the node call in the same order. Returns null on all ranks if one rank fails.
  enum class Owners { all, first };
  std::shared_ptr<SharedParts> allocate(int64_t bytes, Owners owners = Owners::all);
  // Returns the allocation in which this rank's part contains these bytes; null if there is none.
  const SharedParts* find(const void* data, int64_t bytes) const;
  // The rank in `group` of this node for each rank of a communicator; empty if some rank is on
  // another node.
  std::vector<int> ranks_of(MPI_Comm group) const;
  // The bell of a rank's background thread.
  Bell& bell(int rank) { return *bells_[size_t(rank)]; }

 private:
  struct Offer;
  std::string map_parts(SharedParts& parts, int file);

  MPI_Comm node_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::string problem_;
  std::vector<std::weak_ptr<SharedParts>> parts_;
  std::shared_ptr<SharedParts> bell_memory_;
  Bell own_bell_;  // if no memory is shared
  std::vector<Bell*> bells_;
};

}  // namespace comm
