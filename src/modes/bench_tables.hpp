// SPDX-License-Identifier: Apache-2.0
// The tables of --mode bench: products, ops and launches of its timed steps.
#pragma once

#include "modes/bench_steps.hpp"

namespace modes {

// Seconds of all timed steps: what ops took, and what they would take at the machine's limits.
struct OpTimes {
  double all = 0, products = 0, optimizer = 0;
  double products_alone = 0, limit = 0;
};

// On CPUs: prints each op beside the machine's limits. `peak`: FLOP/s of all ranks. All ranks call.
OpTimes print_ops(train::Job& job, const StepTimes& times, double peak);
// On GPUs: prints what ops cost the host.
void print_launches(step::Engine& engine, const StepTimes& times);
// Prints what graphs took the host; the ops in them are counted above, and took it nothing by
// themselves.
void print_graphs(device::Queue& queue, double steps);

}  // namespace modes
