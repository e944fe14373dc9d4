// SPDX-License-Identifier: Apache-2.0
// A hash of tensors that does not depend on how ranks divide them.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/state.hpp"
#include "comm/comm.hpp"
#include "device/queue.hpp"

namespace checkpoint {

// Returns a hash of the tensors whose names begin with `root`: the sum modulo 2^64 of one hash per
// element, of its place and its bits. It finds changes, not forgeries. All ranks call, and each
// reads the parts that it writes to files. `queue` is the queue of the tensors' device.
uint64_t digest_of(comm::Comm& world, const std::vector<shard::TensorSlice>& tensors,
                   const std::string& root, device::Queue& queue);

}  // namespace checkpoint
