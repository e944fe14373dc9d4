// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/recorded.hpp"

#include <cstdlib>

namespace tests {

std::string source_file(const std::string& name) {
  const char* moved = std::getenv("TRAINER_SOURCE_DIR");
  return std::string(moved ? moved : TRAINER_SOURCE_DIR) + "/" + name;
}

}  // namespace tests
