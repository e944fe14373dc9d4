// SPDX-License-Identifier: Apache-2.0
// The whole state of a run as text: logs/state.txt.
#pragma once

#include <string>

#include "checkpoint/state.hpp"
#include "comm/comm.hpp"

namespace train {

inline const char* const kStateFile = "/logs/state.txt";

// Returns what a checkpoint of this state holds: a line for each tensor with its shape, type,
// placement and bytes, then the numbers and texts beside them ("@step"), then the bytes of the
// tensors by root and by rank. The same on every rank; all ranks call.
std::string state_tree(comm::Comm& world, const checkpoint::State& state);

}  // namespace train
