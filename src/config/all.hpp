// SPDX-License-Identifier: Apache-2.0
// The word "all" in place of a list of integers: t.key("ranks", ranks, "...").one_of({kAll}).
#pragma once

#include <cstdint>
#include <vector>

namespace config {

inline constexpr const char* kAll = "all";
// The only element that the list then has.
inline constexpr int64_t kEach = INT64_MIN;
inline bool is_all(const std::vector<int64_t>& list) {
  return list.size() == 1 && list.front() == kEach;
}

}  // namespace config
