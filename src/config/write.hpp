// SPDX-License-Identifier: Apache-2.0
// Writes values as TOML text and as text for messages. Private to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/schema.hpp"

namespace config {

std::string toml_string(std::string_view text);  // on one line, quoted
// In the most readable quoting, over several lines if the text has several.
std::string toml_long_string(std::string_view text);
std::string toml_key(std::string_view name);  // bare if possible
std::string toml_number(double value);        // always a TOML float: 1.0, 5e-07
std::string toml_value(const Value& value);   // on one line; a duration without its unit

std::string duration_key(std::string_view name, const Duration& value);  // total_steps
// Returns toml_value, except that a duration is "100 steps" or "unset".
std::string plain_value(const Value& value);

std::string plain_number(double value);  // for messages: 1, 0.5
// Prepares user text for a message: escapes control characters and cuts after `most` bytes, never
// within a UTF-8 sequence.
std::string printable(std::string_view text, size_t most = 80);
std::string quoted(std::string_view text);  // printable in double quotes

}  // namespace config
