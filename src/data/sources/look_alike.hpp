// SPDX-License-Identifier: Apache-2.0
// Finds files whose names look like a name that is missing. Tables and folders come from different
// systems: macOS writes an e with an accent as two characters, Linux distinguishes capitals.
#pragma once

#include <string>
#include <string_view>

namespace data {

// True for different names that differ only in capitals (ASCII), in characters that are written as
// a letter and its marks (Unicode's normal forms), or in bytes of another encoding.
bool look_alike(std::string_view a, std::string_view b);

// Returns a hint if the folder of a missing file holds a name that looks like it, or "".
std::string look_alike_hint(const std::string& missing);

}  // namespace data
