// SPDX-License-Identifier: Apache-2.0
// A table of what the deck makes of each parameter, for --mode plan.
#pragma once

#include <string>
#include <vector>

#include "step/engine.hpp"
#include "train/recipe.hpp"

namespace modes {

// Returns a heading and a line for each parameter, sorted by path: shape, initial distribution,
// weight decay, multiplier of the learning rate, schedule, kind, placement and unit, state of the
// optimizer. A state without a shape has the parameter's shape.
std::vector<std::string> parameter_rows(const train::Recipe& recipe, step::Engine& engine);

}  // namespace modes
