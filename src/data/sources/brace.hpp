// SPDX-License-Identifier: Apache-2.0
// "train-{000..003}.tar" and "{a,b}/x-{0..9}.tar" as lists of names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace data {

// Ranges keep the width of their first number; several braces multiply, the last one running
// fastest. Error(Exit::config) for a brace that is open, empty, nested or runs backwards, and for
// more than a million names or 256 MiB of them.
std::vector<std::string> expand_braces(std::string_view pattern);
void check_braces(std::string_view pattern);  // the same errors, without making the names

}  // namespace data
