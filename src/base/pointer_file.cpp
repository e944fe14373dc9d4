// SPDX-License-Identifier: Apache-2.0
#include "base/pointer_file.hpp"

namespace base {

std::string pointer_problem(std::string_view head) {
  if (head.starts_with("version https://git-lfs.github.com/spec/"))
    return "this is a pointer of Git LFS, not the file itself: get the file with git lfs pull";
  if (head.starts_with("/annex/objects/"))
    return "this is a pointer of git-annex, not the file itself: get the file with git annex get";
  return "";
}

}  // namespace base
