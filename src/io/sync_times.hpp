// SPDX-License-Identifier: Apache-2.0
// The time that this process spends until its files are on the disk.
#pragma once

namespace io {

// Returns the seconds that the calling thread has spent to sync files and directories so far.
double synced_s();
// Returns the longest sync by any thread since the last call, in seconds; 0 without one.
double take_longest_sync_s();

}  // namespace io
