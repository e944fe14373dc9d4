// SPDX-License-Identifier: Apache-2.0
// Describes a file of weights to people (--mode weights).
#pragma once

#include <string>

#include "checkpoint/init_options.hpp"

namespace checkpoint {

// Returns lines about the file options.from: its size, whose names its tensors have, the trunk, and
// the part of a deck that makes such a trunk and its images. Throws as open_weights does.
std::string report_weights(const InitOptions& options);

}  // namespace checkpoint
