// SPDX-License-Identifier: Apache-2.0
// Numbers of rows whose class is among the first ones, from the ranks that op class_xent gives.
#pragma once

#include <array>

#include "kernels/dispatch.hpp"

namespace kernels {

// hits[j][r] = 1 if ranks[r] < k[j], 0 if not.
struct RankHits {
  static constexpr Op op = Op::rank_hits;
  static constexpr int kMost = 8;
  View hits;   // f32 [count, rows]
  View ranks;  // i32 [rows]
  int64_t rows = 0, count = 0;
  std::array<int32_t, kMost> k{};  // the first `count` are used
};

}  // namespace kernels
