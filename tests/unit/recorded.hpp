// SPDX-License-Identifier: Apache-2.0
// Finds recorded files: in the source tree of the tests' build, or in $TRAINER_SOURCE_DIR (a
// bundle).
#pragma once

#include <cstdlib>
#include <string>

namespace tests {

inline std::string source_file(const std::string& name) {
  const char* moved = std::getenv("TRAINER_SOURCE_DIR");
  return std::string(moved ? moved : TRAINER_SOURCE_DIR) + "/" + name;
}

}  // namespace tests
