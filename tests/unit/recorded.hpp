// SPDX-License-Identifier: Apache-2.0
// Where recorded data lie: in the source tree that the tests were built from, or where
// $TRAINER_SOURCE_DIR says (a bundle).
#pragma once

#include <cstdlib>
#include <string>

namespace tests {

inline std::string source_file(const std::string& name) {
  const char* moved = std::getenv("TRAINER_SOURCE_DIR");
  return std::string(moved ? moved : TRAINER_SOURCE_DIR) + "/" + name;
}

}  // namespace tests
