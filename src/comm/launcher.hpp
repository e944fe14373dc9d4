// SPDX-License-Identifier: Apache-2.0
// The environment of programs that this job starts and that are no ranks of it.
#pragma once

#include <string>
#include <vector>

namespace comm {

// Returns this process's environment without the variables that an MPI launcher sets for a rank.
// Another MPI program that had them would take itself for this rank.
std::vector<std::string> environment_without_mpi();

}  // namespace comm
