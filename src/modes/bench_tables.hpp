// SPDX-License-Identifier: Apache-2.0
// The tables of --mode bench: products, ops and launches of its timed steps.
#pragma once

#include "modes/bench_steps.hpp"

namespace modes {

// Seconds of all timed steps: the measured time of ops, and their time at the machine's limits.
struct OpTimes {
  double all = 0, products = 0, optimizer = 0;
  double products_alone = 0, limit = 0;
  double exchange_alone = 0;  // of one step: all gradients at once, without computing
};

// Prints each op beside the machine's limits, on CPUs. `peak` is the FLOP/s of all ranks. All ranks
// call.
OpTimes print_ops(train::Job& job, const StepTimes& times, double peak);
// Prints the host's time for each op, on GPUs.
void print_launches(step::Engine& engine, const StepTimes& times);
// Prints the host's time for graphs. The table above counts the ops in them, which cost the host no
// time of their own.
void print_graphs(device::Queue& queue, double steps);

}  // namespace modes
