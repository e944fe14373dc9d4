// SPDX-License-Identifier: Apache-2.0
// --mode plan: finds the needs of a run on N ranks by running one step under the plan back end,
// which runs the same code without memory. It needs no mpirun, no GPU and no data. Without data,
// lengths in epochs cannot be resolved.
#pragma once

#include "host/device_choice.hpp"
#include "train/recipe.hpp"

namespace modes {

// Calls and bytes of one rank per step.
struct StepTraffic {
  comm::Traffic fsdp_gather, fsdp_scatter, fsdp_reduce, replica_reduce;
};

// Lines of tables.
struct PlanLines {
  std::vector<std::string> classes, features;  // plan_data.hpp
  std::vector<std::string> parameters;         // none unless plan.parameters
};

struct Plan {
  comm::MeshShape mesh;
  host::DeviceChoice device;
  step::Geometry geometry;
  int64_t examples = 0;  // number of training examples; 0: not known here
  int64_t total_steps = 0;
  std::map<std::string, int64_t> memory;  // category -> bytes per rank
  int64_t arena_peak = 0;
  int64_t step_flops = 0;      // FLOPs of all ops of one step on one rank
  device::PlannedCalls calls;  // of all ops of one step on one rank
  StepTraffic traffic;
  int64_t checkpoint_bytes = 0, dataset_bytes = 0;
  PlanLines lines;
  std::string graph;  // of a step, in DOT; "" unless asked for
};
Plan make_plan(const train::Recipe& recipe, config::Deck& deck, int ranks,
               const std::string& mesh_selector, bool graph = false);

}  // namespace modes
