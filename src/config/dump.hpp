// SPDX-License-Identifier: Apache-2.0
// Writes a tree of sections as text. Private to this folder.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "config/schema.hpp"

namespace config {

std::string write_resolved(const Section& root);
std::map<std::string, std::string> write_flat(const Section& root);
std::string write_description(const Section& schema, std::string_view key, bool guess);

}  // namespace config
