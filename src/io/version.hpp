// SPDX-License-Identifier: Apache-2.0
// Version of the HDF5 library in use.
#pragma once

#include <string>

namespace io {

std::string hdf5_version();  // of the library in use: "1.10.8"

}  // namespace io
