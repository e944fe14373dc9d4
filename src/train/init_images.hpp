// SPDX-License-Identifier: Apache-2.0
// Compares how the deck prepares images with what a folder of released weights says about them.
#pragma once

#include <string>

#include "checkpoint/initial_weights.hpp"
#include "train/recipe.hpp"

namespace train {

// Returns a warning if data sets of this job scale images with another mean or deviation than the
// files beside the weights say (WeightConfig); "" if all agree or nothing is said.
std::string image_difference(const Recipe& recipe, const std::string& from,
                             const checkpoint::WeightConfig& said);

}  // namespace train
