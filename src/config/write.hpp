// SPDX-License-Identifier: Apache-2.0
// Values as TOML text and as text for messages. Private to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/schema.hpp"

namespace config {

std::string toml_string(std::string_view text);  // on one line, quoted
std::string toml_long_string(
    // the most readable quoting, over several lines if the text has them
    std::string_view text);
std::string toml_key(std::string_view name);  // bare if possible
std::string toml_number(double value);        // always a TOML float: 1.0, 5e-07
std::string toml_value(const Value& value);   // on one line; of a duration its number

std::string duration_key(std::string_view name, const Duration& value);  // total_steps
// as toml_value, but "100 steps" or "unset"
std::string plain_value(const Value& value);

std::string plain_number(double value);  // for messages: 1, 0.5
// User text for a message: control characters escaped, cut after `most` bytes (never within a UTF-8
// sequence).
std::string printable(std::string_view text, size_t most = 80);
std::string quoted(std::string_view text);  // printable in double quotes

}  // namespace config
