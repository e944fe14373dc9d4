// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks of a node read and write. A rank of its own node, or a job of one rank, has
// none. Only the communicator includes this file.
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

// Parts of equal size, one for each rank of the node.
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
  // Returns the reason why the ranks of this node share no memory. It is "" if they do share some,
  // or if there is one rank.
  const std::string& problem() const { return problem_; }

  // Makes parts of so many bytes, zero-filled. All ranks of the node call in the same order. Null
  // on all of them if one of them cannot.
  std::shared_ptr<SharedParts> allocate(int64_t bytes);
  // Returns the parts in whose own one these bytes lie; null if they lie in none.
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
