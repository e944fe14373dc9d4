// SPDX-License-Identifier: Apache-2.0
// The members of a zip archive, and where their bytes lie in the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace checkpoint {

struct ZipMember {
  std::string name;
  int64_t bytes = 0;
  std::optional<int64_t> begins;  // offset in the file; none if the member is compressed
};

// Returns the members in file order. Throws Error(Exit::checkpoint), whose text lacks the path, if
// the file is no such archive or was cut.
std::vector<ZipMember> zip_members(const std::string& path);

}  // namespace checkpoint
