// SPDX-License-Identifier: Apache-2.0
// Checks the files that a deck names, for --validate.
#pragma once

#include "train/recipe.hpp"

namespace train {

// Checks that tokenizers, data sets and initial weights exist, can be read and begin with the right
// bytes. The Error lists all problems and has the code of the first one (Exit::data or
// Exit::checkpoint).
void check_files(const Recipe& recipe, config::Deck& deck);

// Prints one line for each key whose files were not checked because --files was not given.
void print_unchecked_files(const Recipe& recipe, const config::Deck& deck);

}  // namespace train
