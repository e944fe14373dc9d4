// SPDX-License-Identifier: Apache-2.0
// Names the MPI that this program uses. mpi_library.cpp also holds mpi_version (comm.hpp).
#pragma once

#include <string>

namespace comm {

// The name as one word (openmpi, mpich, intelmpi, craympich, mvapich; mpi: another one) and the
// version.
struct MpiLibrary {
  std::string name, version;
};

// Reads the text of MPI_Get_library_version.
MpiLibrary mpi_library_of(const std::string& text);
// Returns the library that is loaded. Works before MPI is started.
const MpiLibrary& mpi_library();

}  // namespace comm
