// SPDX-License-Identifier: Apache-2.0
// Tells how the trunks of a file and of a model differ as a whole, instead of tensor by tensor.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/name_map.hpp"

namespace checkpoint {

// Returns the key of the deck that does not fit, both trunks and the way out; "" if the trunks are
// alike, of different kinds, or beside a decoder. `file`: shapes by path of ours.
std::string trunk_difference(const std::map<std::string, std::vector<int64_t>>& file,
                             const std::vector<Wanted>& model);

}  // namespace checkpoint
