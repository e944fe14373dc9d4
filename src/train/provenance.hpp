// SPDX-License-Identifier: Apache-2.0
// What an attempt runs with: program, deck, data, mesh, hosts, libraries, environment, limits. The
// log of attempts and metrics.h5 keep it, and the next attempt says what has changed since.
#pragma once

#include "job/attempt_log.hpp"
#include "train/attempt.hpp"

namespace train {

// Returns the facts about this attempt, once the data are open and the mesh is connected. Facts
// about the machine are rank 0's; "ranks.differ" names the ranks whose facts differ. All ranks
// call.
job::Facts provenance_of(Attempt& attempt);

// Returns lines about what has changed, without what changes with every job.
std::vector<std::string> changes_since(const job::Facts& before, const job::Facts& now);

// Records the facts and prints what has changed since the previous start. All ranks call.
void keep_provenance(Attempt& attempt);

}  // namespace train
