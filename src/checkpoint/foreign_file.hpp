// SPDX-License-Identifier: Apache-2.0
// Files of other programs that users often give as weights, but that this program does not read.
#pragma once

#include <string>

namespace checkpoint {

// Returns what such a file is, judged by the end of its name, and the way out: "; it is an index
// ..". Returns "" for other names.
std::string foreign_hint(const std::string& path);

}  // namespace checkpoint
