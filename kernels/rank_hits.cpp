// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the hits among the first classes.
#include "kernels/rank_hits.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const RankHits& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "count", a.count, 1);
  CHECK(a.count <= RankHits::kMost, "{}: {} counts, at most {}", name_of(a.op), a.count,
        RankHits::kMost);
  need_view(a.op, "hits", a.hits, DType::f32, {a.count, a.rows});
  need_view(a.op, "ranks", a.ranks, DType::i32, {a.rows});
}

Cost cost(const RankHits& a) { return {a.hits.count, a.hits.bytes() + a.ranks.bytes()}; }

}  // namespace kernels
