// SPDX-License-Identifier: Apache-2.0
// Applies --unset a.b.c and --set a.b.c=value to the deck. Private to this folder.
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

// Applies the overrides in order, so that a later one wins. Where the deck has no value yet, the
// schema decides between a table and a list of tables. Problems are reported.
void apply_overrides(const std::vector<std::string>& overrides, const Section& schema, Node& deck,
                     Report& report);

}  // namespace config
