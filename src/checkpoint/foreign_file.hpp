// SPDX-License-Identifier: Apache-2.0
// Files of other programs that are often taken for weights and are not read.
#pragma once

#include <string>

namespace checkpoint {

// Returns what such a file is, by the end of its name, and the way out: "; it is an index ..". ""
// for other names.
std::string foreign_hint(const std::string& path);

}  // namespace checkpoint
