// SPDX-License-Identifier: Apache-2.0
// Lustre spreads a file over targets (stripes). New files take their number from their folder.
#pragma once

#include <cstdint>
#include <string>

namespace job {

// Gives a folder this number of stripes, -1 = all targets, with Lustre's command `lfs`, reads it
// back and logs it. Does nothing if the folder has the number already, or without `lfs`. A failure
// gives a warning with the output of the command. Rank 0 calls.
void stripe_folder(const std::string& folder, int64_t stripes);

}  // namespace job
