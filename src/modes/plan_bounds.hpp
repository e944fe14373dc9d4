// SPDX-License-Identifier: Apache-2.0
// The least time that a step takes on a GPU, by kind of op: each call needs the time of its FLOPs
// or the time of its bytes, whichever is longer.
#pragma once

#include "modes/plan.hpp"

namespace modes {

// Prints the bounds of a planned step on an H200, the largest first, and their sum.
void print_bounds(const train::Recipe& recipe, const Plan& plan);

}  // namespace modes
