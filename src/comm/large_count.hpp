// SPDX-License-Identifier: Apache-2.0
// MPI's exchanges with counts of 64 bits. A count that no int can hold needs a call of MPI 4, which
// not every library has; without it, exchanges go in pieces (long_exchange.hpp). Only the
// communicator includes this file.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/mpi.hpp"

namespace comm::counted {

// The most elements of a call that counts with an int. Tests lower it.
int64_t& longest_call();
// True if the library counts with 64 bits, too. Tests change it.
bool& counts_long();
// True if no single call can exchange so many elements.
inline bool needs_pieces(int64_t count) { return count > longest_call() && !counts_long(); }

// Like the functions of MPI with such names, for counts that need no pieces.
int broadcast(void* data, int64_t count, MPI_Datatype type, int root, MPI_Comm comm);
int begin_sum(void* data, int64_t count, MPI_Datatype type, MPI_Comm comm, MPI_Request* request);
// count: of each rank's part.
int begin_gather(const void* send, int64_t count, MPI_Datatype type, void* recv, MPI_Comm comm,
                 MPI_Request* request);
int begin_scatter(const void* send, int64_t count, MPI_Datatype type, void* recv, MPI_Comm comm,
                  MPI_Request* request);
// Gathers bytes: counts[i] of rank i, to all + starts[i].
int gather_texts(const void* mine, int rank, void* all, const std::vector<int64_t>& counts,
                 const std::vector<int64_t>& starts, MPI_Comm comm);

}  // namespace comm::counted
