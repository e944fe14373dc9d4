// SPDX-License-Identifier: Apache-2.0
// Tests the hits among the first classes.
#include "kernels/rank_hits.hpp"

#include "rig.hpp"

COVERS(rank_hits);

namespace {

using namespace kernels;
using namespace rig;

TEST(RankHits, AreThoseOfPlainComparisons) {
  for (int64_t rows : {1, 5, 700}) {
    std::vector<int32_t> ranks;
    for (int64_t r = 0; r < rows; ++r) ranks.push_back(int32_t(r * 7 % 11));
    std::vector<float> hits(size_t(3 * rows), -1);
    TestQueue queue(2);
    run(RankHits{.hits = device::view(hits.data(), 3 * rows),
                 .ranks = device::view(ranks.data(), rows),
                 .rows = rows,
                 .count = 3,
                 .k = {1, 5, 11}},
        queue);
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(hits[size_t(r)], float(ranks[size_t(r)] == 0));
      EXPECT_EQ(hits[size_t(rows + r)], float(ranks[size_t(r)] < 5));
      EXPECT_EQ(hits[size_t(2 * rows + r)], 1);
    }
  }
}

TEST(RankHits, RefusesWrongShapes) {
  Queue queue(device::Kind::plan);
  std::vector<int32_t> ranks(4);
  std::vector<float> hits(36);
  auto of = [&](auto change) {
    RankHits a{device::view(hits.data(), 8), device::view(ranks.data(), 4), 4, 2, {1, 5}};
    change(a);
    kernels::run(a, queue);
  };
  of([](RankHits&) {});
  EXPECT_ERROR(of([](RankHits& a) { a.hits.count = 7; }), "rank_hits", "hits");
  EXPECT_ERROR(of([](RankHits& a) { a.ranks.count = 3; }), "rank_hits", "ranks");
  EXPECT_ERROR(of([&](RankHits& a) {
                 a.count = 9;
                 a.hits.count = 36;
               }),
               "rank_hits", "9 counts");
}

}  // namespace
