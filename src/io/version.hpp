// SPDX-License-Identifier: Apache-2.0
// The version of the HDF5 library, and what it can read.
#pragma once

#include <string>

namespace io {

std::string hdf5_version();  // version of the library in use, for example "1.10.8"
bool built_with_lzf();       // reads what h5py has compressed with lzf

}  // namespace io
