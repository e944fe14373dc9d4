// SPDX-License-Identifier: Apache-2.0
// Expands patterns such as "train-{000..003}.tar" and "{a,b}/x-{0..9}.tar" to lists of names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace data {

// If the first or last number of a range begins with 0, all numbers get the width of the longer
// one, as in bash. Several braces give all combinations; the last brace varies fastest. Throws
// Error(Exit::config) for a brace that is open, empty, nested or runs backwards, and for more than
// a million names or 256 MiB of names.
std::vector<std::string> expand_braces(std::string_view pattern);
void check_braces(std::string_view pattern);  // throws the same errors without making names

}  // namespace data
