// SPDX-License-Identifier: Apache-2.0
// Finds the exchange at which the ranks of a job parted: they must all call the same ones in the
// same order.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.hpp"

namespace job {

// Numbers and texts of a rank's newest calls, the oldest first.
struct Calls {
  struct Call {
    uint64_t number = 0;
    std::string text;
  };
  std::vector<Call> newest;
};
Calls own_calls();

// Returns "call 117: ranks 0, 2: all_reduce of fsdp, f32 x 8; rank 1: ..." for the first call that
// differs, of those that all ranks still know.
std::string first_difference(const std::vector<Calls>& by_rank);

// Ends the job with Error(Exit::internal) that names both calls. All ranks call, after they have
// found that their calls differ.
[[noreturn]] void refuse_unlike_calls(comm::Comm& world);

}  // namespace job
