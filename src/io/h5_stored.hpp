// SPDX-License-Identifier: Apache-2.0
// Before rows are read, finds data that HDF5 would silently read as zeros, and data that it cannot
// read at all. Only io includes this header.
#pragma once

#include <hdf5.h>

#include <string>

namespace io {

// True if the data is stored in other files: a virtual dataset, or one with external files.
bool is_elsewhere(hid_t dataset);

// Throws Failure with the filter's name if the data is compressed by one that the library lacks.
void check_filters(hid_t dataset, const std::string& name, const std::string& path);

// Throws Failure if a part of the data is missing: sources of a virtual dataset, external files,
// data that was never written. Checks the source datasets of a virtual dataset in the same way.
// `count_chunks`: look for chunks that were never written, which reads the index of all chunks.
void check_stored(hid_t dataset, const std::string& name, const std::string& path,
                  bool count_chunks);

}  // namespace io
