// SPDX-License-Identifier: Apache-2.0
// The version of the HDF5 library, and what it can read.
#pragma once

#include <string>

namespace io {

// Returns version and kind of the library in use, for example "1.10.8-parallel".
std::string hdf5_version();
// True if this build's HDF5 has the MPI-IO driver (h5_shared.hpp).
bool hdf5_is_parallel();
bool built_with_lzf();  // reads what h5py has compressed with lzf

}  // namespace io
