// SPDX-License-Identifier: Apache-2.0
// Tells how the trunks of a file and of a model differ as a whole, instead of tensor by tensor.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/name_map.hpp"

namespace checkpoint {

// Returns a text with the deck's key that does not fit, both trunks and the way out. Returns "" if
// the trunks are alike, of different kinds, or without keys. `file`: shapes by our path.
std::string trunk_difference(const models::TensorShapes& file, const std::vector<Wanted>& model,
                             const models::TrunkWeights& trunk);

}  // namespace checkpoint
