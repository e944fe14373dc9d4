// SPDX-License-Identifier: Apache-2.0
// --mode plan: what a run on N ranks would take, found by running one step under the plan back end:
// the same code with no memory. Needs no mpirun, no data (without them, lengths in epochs cannot be
// resolved) and no GPU.
#pragma once

#include "host/device_choice.hpp"
#include "train/recipe.hpp"

namespace modes {

struct Plan {
  comm::MeshShape mesh;
  host::DeviceChoice device;
  step::Geometry geometry;
  int64_t examples = 0;  // of the training data; 0: not known here
  int64_t total_steps = 0;
  std::map<std::string, int64_t> memory;  // category -> bytes per rank
  int64_t arena_peak = 0;
  int64_t step_flops = 0;  // of all ops of one step on one rank
  comm::Traffic fsdp_gather, fsdp_scatter, fsdp_reduce,
      replica_reduce;  // per step, this rank's calls and bytes
  int64_t checkpoint_bytes = 0, dataset_bytes = 0;
};
Plan make_plan(const train::Recipe& recipe, config::Deck& deck, int ranks,
               const std::string& mesh_selector);

}  // namespace modes
