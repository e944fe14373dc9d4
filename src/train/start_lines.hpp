// SPDX-License-Identifier: Apache-2.0
// Prints the lines that describe a run as it starts, in order.
#pragma once

#include "host/mfu.hpp"
#include "train/attempt.hpp"

namespace train {

// Seconds of a sum of 16 MiB over the groups of the mesh, on the slowest rank.
struct ExchangeTimes {
  double world_s = 0, fsdp_s = 0, replica_s = 0;
};
// All ranks call. `same_bits`: level "mesh", whose sums over the axes have an order of their own.
ExchangeTimes time_exchanges(const comm::Mesh& mesh, bool same_bits);

// Prints the lines once the engine is built. All ranks call.
void print_start(Attempt& attempt, const ExchangeTimes& exchanges, const host::Peak& peak);

}  // namespace train
