// SPDX-License-Identifier: Apache-2.0
// --unset a.b.c and --set a.b.c=value, applied to the deck. Private to this folder.
#pragma once

#include <string>
#include <vector>

#include "config/node.hpp"
#include "config/report.hpp"
#include "config/schema.hpp"

namespace config {

// Removes the keys and tables from the deck. A key that the deck does not set is reported, unless
// parts of the deck were left out after syntax errors (`complete` is false).
void remove_keys(const std::vector<std::string>& keys, Node& deck, Report& report, bool complete);

// Later ones win. The schema tells lists of tables from tables where the deck has neither. Problems
// are reported.
void apply_overrides(const std::vector<std::string>& overrides, const Section& schema, Node& deck,
                     Report& report);

}  // namespace config
