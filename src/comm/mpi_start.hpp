// SPDX-License-Identifier: Apache-2.0
// Starts MPI. Only the session includes this file.
#pragma once

namespace comm {

// Starts MPI, unless it has been started before. Returns true if it did. Fails if not all ranks of
// the job start it in time, or if the launcher belongs to another MPI.
bool start_mpi(int& argc, char**& argv);

}  // namespace comm
