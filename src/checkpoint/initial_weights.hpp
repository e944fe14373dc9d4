// SPDX-License-Identifier: Apache-2.0
// Starts a new run's parameters from a file ([init]).
#pragma once

#include <string>
#include <vector>

#include "checkpoint/init_options.hpp"
#include "checkpoint/name_map.hpp"
#include "checkpoint/state.hpp"
#include "checkpoint/weight_config.hpp"
#include "comm/comm.hpp"
#include "comm/together.hpp"

namespace checkpoint {

struct InitReport {
  std::string summary;  // "loaded 281 tensors = 191,669,504 values, skipped 0, ..."
  // one per tensor of the model or the file: "loaded encoder/pos_embedding [1, 196, 768]"
  std::vector<std::string> lines;
  double seconds = 0;
  WeightConfig beside;  // what files beside another program's weights say about images
};

// Overwrites the parameters that the file has; the others stay as they are. `target` holds this
// rank's parts, whose tensors /params/... must be f32. `trunk`: what the model's trunk declares.
// Rank 0 alone reads the file, in pieces, and sends them to the other ranks.
// All ranks call. On an error all ranks throw the same one (Exit::checkpoint), and the parameters
// may be partly overwritten. All ranks call `poll` between two pieces.
InitReport load_initial_weights(comm::Comm& comm, const InitOptions& options, const State& target,
                                const models::TrunkWeights& trunk, const comm::Poll& poll,
                                Use use = Use::begins);

}  // namespace checkpoint
