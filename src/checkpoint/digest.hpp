// SPDX-License-Identifier: Apache-2.0
// A number that identifies parameters by their paths, shapes and values, wherever they come from.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/comm.hpp"
#include "device/queue.hpp"
#include "shard/parameter.hpp"

namespace checkpoint {

// Returns the digest of f32 tensors, whose parts lie in the memory of `queue`. It does not depend
// on the number of ranks or on the sharding: it is a sum of one number for each element. All ranks
// call. An accident changes it with near certainty; an attacker could forge it.
uint64_t digest_of(comm::Comm& comm, const std::vector<shard::TensorSlice>& tensors,
                   device::Queue& queue);

}  // namespace checkpoint
