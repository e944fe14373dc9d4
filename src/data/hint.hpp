// SPDX-License-Identifier: Apache-2.0
// Hints for misspelt names in the messages of this folder.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/text.hpp"

namespace data {

// Returns ", nearest is 'resize'", or "" if nothing is near.
inline std::string nearest_hint(std::string_view name, const std::vector<std::string>& known) {
  std::string nearest = base::nearest_name(name, known);
  return nearest.empty() ? "" : fmt::format(", nearest is '{}'", nearest);
}

// Returns "a, b, c", or "none".
inline std::string list_of(const std::vector<std::string>& names) {
  return names.empty() ? "none" : base::join(names, ", ");
}

}  // namespace data
