// SPDX-License-Identifier: Apache-2.0
// Checks that a number stands for one class in all data sets that are used together, and in the
// training of the weights that they are used with.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "train/recipe.hpp"

namespace train {

// The data sets of a job.
struct ClassSets {
  std::set<std::string> names;  // those that it reads
  // Those whose labels it writes beside what a model makes of their images (extract, predict).
  std::set<std::string> written = {};
};

// Adds a problem to the deck for each data set whose classes have other numbers than those of the
// set that it is used with: sets of a mixture, of training and an evaluation of the model's
// classes, and both sets of an evaluator that fits to one and tests on the other. A set that is
// written is compared with those of training. Texts that an evaluator has for its classes may not
// stand in another order than the classes. Sets of training count if their lists are here.
void check_class_lists(const Recipe& recipe, config::Deck& deck, const models::Model& made,
                       const ClassSets& sets);

// Returns the names of the model's classes in the order of their numbers, each a line, as far as a
// list of these sets has them; "" if no set has a list. Checkpoints keep it.
std::string class_text(const Recipe& recipe, const models::Model& made, const ClassSets& sets);

// Compares the lists of these sets with `trained`, the class text that `file` holds. Returns the
// first difference and the way out; "" without one. Sets whose list is at a key of `allowed`
// (--allow-change) do not count.
std::string class_text_problem(const Recipe& recipe, const models::Model& made,
                               const ClassSets& sets, const std::string& trained,
                               const std::string& file, const std::vector<std::string>& allowed);

}  // namespace train
