// SPDX-License-Identifier: Apache-2.0
// Paths that people write for a shell or for another library.
#pragma once

#include <string>
#include <string_view>

namespace base {

// Returns why a text cannot be used as a path, and what to write instead; "" if it can. Only shells
// replace "~" at the beginning and "$NAME" as a part of a path. Here they would become names of
// folders. Addresses such as "s3://bucket" are not files, nor is "s3:/bucket", the same address
// after a library treated it as a path. "./" at the beginning, or "/./", marks a literal path.
// `replaces_variables`: the reader of this path replaces "$NAME".
std::string path_problem(std::string_view text, bool replaces_variables = false);

// Returns the same for the name of a file in a table or archive, where only a "$" at the beginning
// is a problem.
std::string name_problem(std::string_view text);

}  // namespace base
