// SPDX-License-Identifier: Apache-2.0
// Finds the rank that a job without progress waits for, from what all ranks do. Never compares the
// clocks of two ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "job/flight.hpp"

namespace job {

// The state of one rank in a job that makes no progress.
struct Standing {
  int rank = 0;
  std::string host;
  std::optional<Flight> flight;  // nothing: its flight file cannot be read
  // State of its process: 'R', 'S', 'D', 'T', ...; 0: it is gone; '?': it is on another node.
  char state = '?';
  bool answers = true;  // its watchdog has written its stacks
};

struct Verdict {
  int rank = -1;  // the rank that the others wait for; -1: not known
  std::string host;
  std::string text;  // for the log, one line
};

// `standing` has all ranks in order. `idle_s`: how long the caller's rank has made no progress.
Verdict find_culprit(const std::vector<Standing>& standing, double idle_s);

// Names the rank that has called another exchange than the others. Of two ranks, it is the one
// whose call has never before followed its predecessor. Returns rank -1 if all known calls agree.
Verdict find_unlike(const std::vector<Standing>& standing);
// Like find_unlike. If all calls agree, names the rank that has left a call in which the others
// still wait. It may also be the rank that waits in a call that the others have left.
Verdict find_parted(const std::vector<Standing>& standing);

// Returns "loader 2: load a sample 17": what a thread of the rank computes or reads, outside any
// wait. Of several threads the one that began last counts, because the others may wait for it; ""
// if all threads wait.
std::string busy_thread(const Flight& flight);

}  // namespace job
