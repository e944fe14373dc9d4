// SPDX-License-Identifier: Apache-2.0
// --validate: the files that a deck names.
#pragma once

#include "train/recipe.hpp"

namespace train {

// Looks at tokenizers, data sets and initial weights: whether they exist and can be read, and
// whether their first bytes are what they should be. Error lists all problems; its code is that of
// the first (Exit::data or Exit::checkpoint).
void check_files(const Recipe& recipe, config::Deck& deck);

// Prints one line for each key whose files a validation without --files has not looked at.
void print_unchecked_files(const Recipe& recipe, const config::Deck& deck);

}  // namespace train
