// SPDX-License-Identifier: Apache-2.0
// The __shared__ variables of the program's kernels.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace cuda_on_cpu {

struct SharedVariable {
  char* data;
  size_t bytes;
};
const std::vector<SharedVariable>& shared_variables();
std::string name_of_function(const void* address);

// Makes __shared__ memory undefined for the blocks of one launch.
class StaticShared {
 public:
  StaticShared();
  // Blocks have numbers from 0.
  void before_block(size_t number);

 private:
  std::set<const SharedVariable*> used_;
};

}  // namespace cuda_on_cpu
