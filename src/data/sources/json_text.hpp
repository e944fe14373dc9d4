// SPDX-License-Identifier: Apache-2.0
// Values of JSON as texts: names, ids, labels.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace data {

// Returns a text as it is, and a whole number by its digits, also if it is written as 7.0; true is
// 1 and false is 0, as in Python. Returns nothing for other values. Half of a character
// (strict_json) becomes bytes that are not UTF-8, so that its sample is a broken one.
std::optional<std::string> text_of_json(const nlohmann::json& value);

}  // namespace data
