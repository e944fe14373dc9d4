// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the hits among the first classes.
#include "kernels/rank_hits.hpp"

namespace kernels {

void run_cpu(const RankHits& a, Queue&) {
  for (int64_t j = 0; j < a.count; ++j)
    for (int64_t r = 0; r < a.rows; ++r)
      a.hits.f32()[j * a.rows + r] = a.ranks.i32()[r] < a.k[size_t(j)] ? 1.0f : 0.0f;
}

}  // namespace kernels
