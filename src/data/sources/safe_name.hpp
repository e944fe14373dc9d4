// SPDX-License-Identifier: Apache-2.0
// Checks names of files that come from data: archives and tables.
#pragma once

#include <string>
#include <string_view>

#include "base/text.hpp"

namespace data {

// Returns why a name is refused ("is an absolute path"), or "". A name must stay in its folder and
// on its line.
inline std::string unsafe_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name[0] == '/') return "is an absolute path";
  for (char c : name)
    if (uint8_t(c) < 0x20 || c == 0x7f) return "holds a control character";
  for (const std::string& part : base::split(name, '/'))
    if (part == "..") return "leads out of its folder";
  return "";
}

// Returns a name with its letters from A to Z in lower case.
inline std::string lower_case(std::string_view name) {
  std::string out(name);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return out;
}

}  // namespace data
