// SPDX-License-Identifier: Apache-2.0
// Regular expressions that come from decks.
#pragma once

#include <string>

namespace base {

// Why the text is not used as a regular expression, or "". std::regex goes down one level of the
// stack per character, so a long one is refused before it is tried.
std::string pattern_problem(const std::string& text);

}  // namespace base
