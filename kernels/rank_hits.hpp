// SPDX-License-Identifier: Apache-2.0
// Numbers of rows whose class is among the first ones, from the ranks that op class_xent gives.
#pragma once

#include <array>

#include "kernels/check_views.hpp"

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

inline void check(const RankHits& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "count", a.count, 1);
  CHECK(a.count <= RankHits::kMost, "{}: {} counts, at most {}", name_of(a.op), a.count,
        RankHits::kMost);
  need_view(a.op, "hits", a.hits, DType::f32, {a.count, a.rows});
  need_view(a.op, "ranks", a.ranks, DType::i32, {a.rows});
}

inline Cost cost(const RankHits& a) { return {a.hits.count, a.hits.bytes() + a.ranks.bytes()}; }

}  // namespace kernels
