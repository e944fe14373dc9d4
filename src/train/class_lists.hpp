// SPDX-License-Identifier: Apache-2.0
// Checks that a number stands for one class in all data sets that are used together.
#pragma once

#include <set>
#include <string>

#include "train/recipe.hpp"

namespace train {

// Adds a problem to the deck for each data set whose classes have other numbers than those of the
// set that it is used with: sets of a mixture, of training and an evaluation of the model's
// classes, and both sets of an evaluator that fits to one and tests on the other. `names`: the sets
// that the job reads; those of training count as well if their lists are here.
void check_class_lists(const Recipe& recipe, config::Deck& deck, const models::Model& made,
                       const std::set<std::string>& names);

}  // namespace train
