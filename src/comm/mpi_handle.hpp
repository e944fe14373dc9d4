// SPDX-License-Identifier: Apache-2.0
// A communicator in MPI's own form, for a library that takes one (HDF5's MPI-IO driver).
#pragma once

#include "comm/comm.hpp"

namespace comm {

// Returns the address of the MPI_Comm; null if this is not an MPI communicator. Waits until no
// exchange is in flight. The main thread may then call MPI through the library until it begins the
// next exchange.
const void* mpi_handle(Comm& comm);

}  // namespace comm
