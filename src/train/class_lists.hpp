// SPDX-License-Identifier: Apache-2.0
// Checks that each number means the same class in all data sets that are used together, and in
// the training of the weights.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "train/recipe.hpp"

namespace train {

// The data sets of a job.
struct ClassSets {
  std::set<std::string> names;  // the sets that it reads
  // The sets whose labels it writes with a model's results for their images (extract, predict).
  std::set<std::string> written = {};
};

// Adds a problem to the deck for each data set whose classes have other numbers than in the set
// that it is used with. Sets are used together in a mixture, in training and an evaluation of the
// model's classes, and by an evaluator that fits to one and tests on the other. A set that is
// written is compared with the training sets. An evaluator's texts for its classes must have the
// order of the classes. Training sets count if their lists exist on this machine.
void check_class_lists(const Recipe& recipe, config::Deck& deck, const models::Model& made,
                       const ClassSets& sets);

// Returns the names of the model's classes in the order of their numbers, one per line, from the
// longest list of these sets; "" if no set has a list. Checkpoints keep this text.
std::string class_text(const Recipe& recipe, const models::Model& made, const ClassSets& sets);

// Compares the lists of these sets with `trained`, the class text that `file` holds. Returns the
// first difference and the way out; "" without one. Sets whose list is at a key of `allowed`
// (--allow-change) do not count.
std::string class_text_problem(const Recipe& recipe, const models::Model& made,
                               const ClassSets& sets, const std::string& trained,
                               const std::string& file, const std::vector<std::string>& allowed);

}  // namespace train
