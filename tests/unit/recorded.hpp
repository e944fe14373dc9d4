// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tests {

// Returns the path of a file of the source tree: that of the tests' build, or of
// $TRAINER_SOURCE_DIR (a bundle). `name` begins at the project's folder. One source alone is
// compiled with the path, so that folders with equal sources share the objects of all others.
std::string source_file(const std::string& name);

}  // namespace tests
