// SPDX-License-Identifier: Apache-2.0
// How files get to the disk, and the time that this process spends until they are there.
#pragma once

#include "io/files.hpp"

namespace io {

// Begins to write these bytes of the page cache to the disk, if the system can, and does not wait
// for the disk. File::sync reports what is lost later.
void start_writeback(const File& file, int64_t offset, int64_t bytes);

// Returns the seconds that the calling thread has spent to sync files and directories so far.
double synced_s();
// Returns the longest sync by any thread since the last call, in seconds; 0 without one.
double take_longest_sync_s();

}  // namespace io
