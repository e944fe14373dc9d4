// SPDX-License-Identifier: Apache-2.0
// Named time ranges that a GPU profiler shows (NVTX: Nsight Systems): steps, phases, ops. Without a
// profiler, and in builds without CUDA, a range costs next to nothing.
#pragma once

#include <cstdint>

namespace device {

class Range {
 public:
  explicit Range(const char* name);
  Range(const char* name, int64_t number);  // "name number"
  ~Range();
  Range(const Range&) = delete;
};

}  // namespace device
