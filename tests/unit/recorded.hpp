// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tests {

// Returns the path of a file of the source tree: of the tree that the tests were built from, or of
// $TRAINER_SOURCE_DIR (a bundle). `name` is relative to the project's folder. Only recorded.cpp is
// compiled with the path, so that folders with equal sources share all other objects.
std::string source_file(const std::string& name);

}  // namespace tests
