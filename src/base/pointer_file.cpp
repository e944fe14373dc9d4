// SPDX-License-Identifier: Apache-2.0
#include "base/pointer_file.hpp"

namespace base {

std::string pointer_problem(std::string_view head) {
  if (head.starts_with("version https://git-lfs.github.com/spec/"))
    return "this is a pointer of Git LFS in the place of the file: get it with git lfs pull";
  if (head.starts_with("/annex/objects/"))
    return "this is a pointer of git-annex in the place of the file: get it with git annex get";
  return "";
}

}  // namespace base
