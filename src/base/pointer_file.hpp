// SPDX-License-Identifier: Apache-2.0
// Pointer files: small files in the place of large ones that were not fetched.
#pragma once

#include <string>
#include <string_view>

namespace base {

// `head`: the first bytes of a file. If they begin a pointer of Git LFS or git-annex, returns a
// text that says so, with the command that gets the real file; else "".
std::string pointer_problem(std::string_view head);

}  // namespace base
