// SPDX-License-Identifier: Apache-2.0
// Emulates NVTX ranges and records them.
#pragma once

#include <string>
#include <vector>

namespace cuda_on_cpu {
struct Ranges {
  std::vector<std::string> open;
  std::vector<std::string> begun;  // each with its outer ranges: "step 3/update/add"
};
inline thread_local Ranges ranges;  // NVTX has a stack for each thread, too
}  // namespace cuda_on_cpu

inline int nvtxRangePushA(const char* name) {
  auto& r = cuda_on_cpu::ranges;
  r.open.push_back((r.open.empty() ? "" : r.open.back() + "/") + name);
  if (r.begun.size() < 1000) r.begun.push_back(r.open.back());
  return int(r.open.size()) - 1;
}
inline int nvtxRangePop() {
  if (cuda_on_cpu::ranges.open.empty()) return -2;  // as NVTX does
  cuda_on_cpu::ranges.open.pop_back();
  return int(cuda_on_cpu::ranges.open.size());
}
