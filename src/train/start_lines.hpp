// SPDX-License-Identifier: Apache-2.0
// The lines that describe a run as it starts, in their order.
#pragma once

#include "host/mfu.hpp"
#include "train/attempt.hpp"

namespace train {

// Seconds that a sum of 16 MiB takes over the groups of the mesh, of the slowest rank.
struct ExchangeTimes {
  double world_s = 0, fsdp_s = 0, replica_s = 0;
};
// All ranks call.
ExchangeTimes time_exchanges(const comm::Mesh& mesh);

// All ranks call. The engine is built.
void print_start(Attempt& attempt, const ExchangeTimes& exchanges, const host::Peak& peak);

}  // namespace train
