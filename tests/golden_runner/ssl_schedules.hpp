// SPDX-License-Identifier: Apache-2.0
// Published schedules as parts of a deck.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace golden {

// Returns the [[schedule.default.phase]] tables of a published schedule, from its arguments.
std::string phases_text(const nlohmann::json& args);

}  // namespace golden
