// SPDX-License-Identifier: Apache-2.0
// --cleanup: after a run that has finished, removes from its directory what runs write there, and
// the directory itself if nothing else is left. For trials whose last line or exit code is all that
// counts.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.hpp"

namespace modes {

// Refuses a directory that holds something but no run: Error(Exit::config). All ranks call, before
// the run directory is made.
void check_cleanup(comm::Comm& world, const std::string& directory);
// Removes the files of the run. All ranks call, after the run has let go of its directory. What
// cannot be removed is a warning.
void clean_up(comm::Comm& world, const std::string& directory);

// The files of a run below `directory` that were removed, and what runs do not write, which stays.
struct Swept {
  int64_t removed = 0;
  std::vector<std::string> kept;
};
Swept sweep_run_directory(const std::string& directory);

}  // namespace modes
