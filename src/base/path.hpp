// SPDX-License-Identifier: Apache-2.0
// Paths that people write for a shell or for another library.
#pragma once

#include <string>
#include <string_view>

namespace base {

// Returns why a text is no path as it is written, with the way out; "" if it is one. "~" and
// "$NAME" at its beginning are left as they are by all but shells, and would become the names of
// folders. Addresses such as "s3://bucket" lead to no file. `replaces_variables`: the reader of
// this path replaces "$NAME".
std::string path_problem(std::string_view text, bool replaces_variables = false);

}  // namespace base
