// SPDX-License-Identifier: Apache-2.0
// Regular expressions from decks.
#pragma once

#include <string>

namespace base {

// Returns the reason why the text cannot be used as a regular expression, or "". std::regex
// recurses once per character, so long ones are refused unparsed.
std::string pattern_problem(const std::string& text);

}  // namespace base
