// SPDX-License-Identifier: Apache-2.0
// Exchanges of more elements than one call of this MPI can count, on any number of ranks: each rank
// sends messages of 16 MiB to one rank after the other. As the tree's exchange it never waits:
// `advance` does what can be done now. A sum adds the ranks' numbers in an order that is the same
// in each run. Only the communicator includes this file.
#pragma once

#include <vector>

#include "comm/mpi.hpp"
#include "device/types.hpp"

namespace comm {

class LongExchange {
 public:
  // `sequence` numbers the exchanges of a communicator, alike on all ranks (tree_exchange.hpp).
  // `send` may be this rank's part of recv.
  void begin_gather(MPI_Comm comm, int64_t sequence, device::View send, device::View recv);
  void begin_scatter(MPI_Comm comm, int64_t sequence, device::View send, device::View recv);
  // Sums in place.
  void begin_sum(MPI_Comm comm, int64_t sequence, device::View view);
  bool advance();  // true when all is done

 private:
  // A message to the rank `to`, and one from the rank `from`. That one is added to its place if
  // `adds`.
  struct Round {
    int to = 0, from = 0;
    device::View out, in;
    bool adds = false;
  };
  void begin(MPI_Comm comm, int64_t sequence);
  void add_rounds(const std::vector<device::View>& out, const std::vector<device::View>& in,
                  bool adds);
  bool post();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  int64_t sequence_ = 0, piece_ = 0;  // number of the piece in its round
  size_t round_ = 0;
  std::vector<Round> rounds_;
  std::vector<char> room_;
  device::View due_;  // where the piece that comes in belongs
  MPI_Request requests_[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  bool posted_ = false;
};

}  // namespace comm
