// SPDX-License-Identifier: Apache-2.0
// Values of JSON as texts: names, ids, labels.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace data {

// Returns a text unchanged, and the digits of a whole number, even if it is written as 7.0. True is
// 1 and false is 0, as in Python. Returns nothing for other values. Half a character (strict_json)
// becomes bytes that are not UTF-8, so that its sample counts as broken.
std::optional<std::string> text_of_json(const nlohmann::json& value);

}  // namespace data
