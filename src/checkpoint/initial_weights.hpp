// SPDX-License-Identifier: Apache-2.0
// Starts a new run's parameters from a file ([init]).
#pragma once

#include <string>
#include <vector>

#include "checkpoint/init_options.hpp"
#include "checkpoint/state.hpp"
#include "comm/comm.hpp"
#include "comm/together.hpp"

namespace checkpoint {

struct InitReport {
  std::string summary;  // "loaded 281 tensors = 191,669,504 values, skipped 0, ..."
  // "loaded encoder/pos_embedding [1, 196, 768]", one per tensor of either side
  std::vector<std::string> lines;
  double seconds = 0;
};

// Overwrites those parameters that the file has; the others stay as they are. `target`: this rank's
// parts and where they lie; those named /params/... are meant, f32. `grids`: paths of position
// tables that may be resampled. Rank 0 alone reads the file, in pieces, and sends them to the
// others. All ranks call; on an error all ranks throw the same one (Exit::checkpoint), and the
// parameters may be partly overwritten. `poll` is called by all ranks between two pieces.
InitReport load_initial_weights(comm::Comm& comm, const InitOptions& options, const State& target,
                                const std::vector<std::string>& grids, const comm::Poll& poll);

}  // namespace checkpoint
