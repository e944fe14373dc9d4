// SPDX-License-Identifier: Apache-2.0
// Reports keys and tables that no row knows. Private to this folder.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "config/report.hpp"
#include "config/schema.hpp"

namespace config {

// Returns base::nearest_name, but with less tolerance and safe for names of any length. If there is
// none, returns a name with these initials (lr for learning_rate). Empty if none is near.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

// Reports every entry of the deck that no row read. `schema` shows where such a key would belong.
// `complete` is false if parts of the deck were left out after syntax errors.
void report_unknown(const Section& root, const Section& schema, Report& report, bool complete);

}  // namespace config
