// SPDX-License-Identifier: Apache-2.0
// Tests which ranks the checks of --mode selftest blame.
#include <gtest/gtest.h>

#include "modes/selftest_checks.hpp"
#include "modes/selftest_model.hpp"

namespace modes::selftest {
namespace {

using Ranks = std::set<int>;

// Returns the pairs of neighbours in a ring, in which sums with a rank of `adds` are wrong for
// both, and ranks of `reads` see wrong sums.
std::vector<Pair> ring(int n, const Ranks& adds, const Ranks& reads) {
  std::vector<Pair> pairs;
  for (int a = 0; a < (n == 2 ? 1 : n); ++a) {
    const int b = (a + 1) % n;
    const bool both = adds.contains(a) || adds.contains(b);
    pairs.push_back({a, b, both || reads.contains(a), both || reads.contains(b)});
  }
  return pairs;
}

TEST(SelftestSums, TheRankAllOfWhosePairsFailIsBlamed) {
  for (int n : {3, 4, 5, 16})
    for (int bad = 0; bad < n; ++bad) {
      EXPECT_EQ(blamed_by_pairs(ring(n, {bad}, {})), Ranks{bad}) << n;
      EXPECT_EQ(blamed_by_pairs(ring(n, {}, {bad})), Ranks{bad}) << n;
    }
  EXPECT_EQ(blamed_by_pairs(ring(8, {2, 6}, {})), (Ranks{2, 6}));
  EXPECT_EQ(blamed_by_pairs(ring(4, {}, {})), Ranks{});
  // Of two ranks, either may have added the wrong value, but only one has read it wrong.
  EXPECT_EQ(blamed_by_pairs(ring(2, {1}, {})), (Ranks{0, 1}));
  EXPECT_EQ(blamed_by_pairs(ring(2, {}, {1})), Ranks{1});
}

TEST(SelftestBlocks, SendersAndReceiversAreToldApart) {
  const std::vector<std::vector<int>> all(4, {0, 1, 2, 3}),
      pairs = {{0, 1}, {0, 1}, {2, 3}, {2, 3}};
  EXPECT_EQ(blamed_by_blocks({{}, {}, {}, {}}, all), Ranks{});
  EXPECT_EQ(blamed_by_blocks({{2}, {2}, {}, {2}}, all), Ranks{2});
  EXPECT_EQ(blamed_by_blocks({{2}, {2}, {2}, {2}}, all), Ranks{2});
  EXPECT_EQ(blamed_by_blocks({{}, {0, 2}, {}, {}}, all), Ranks{1});
  EXPECT_EQ(blamed_by_blocks({{2}, {0, 2, 3}, {}, {2}}, all), (Ranks{1, 2}));
  EXPECT_EQ(blamed_by_blocks({{}, {}, {3}, {3}}, pairs), Ranks{3});
  EXPECT_EQ(blamed_by_blocks({{}, {}, {3}, {}}, pairs), (Ranks{2, 3}));
}

TEST(SelftestSpeed, RanksFarBelowTheMedianAreSlow) {
  EXPECT_EQ(slow_ranks({100, 95, 58, 104}, 0.6), std::vector<int>{2});
  EXPECT_EQ(slow_ranks({100, 95, 59, 104}, 0.6), std::vector<int>{});
  EXPECT_EQ(slow_ranks({100, 20}, 0.6), std::vector<int>{1});
  EXPECT_EQ(slow_ranks({100}, 0.6), std::vector<int>{});
}

// Returns readings around barriers, for ranks whose clocks are `ahead` seconds ahead. Ranks arrive
// at different times, and leave when the last one has arrived.
std::vector<std::vector<Readings>> readings(const std::vector<double>& ahead) {
  std::vector<std::vector<Readings>> rounds;
  for (int i = 0; i < 5; ++i) {
    std::vector<Readings>& round = rounds.emplace_back();
    const double begin = 1e9 + i;
    for (size_t r = 0; r < ahead.size(); ++r) {
      const double come = begin + 0.01 * double((r * 3 + size_t(i)) % ahead.size());
      const double leave = begin + 0.01 * double(ahead.size()) + 0.001 * double(r);
      round.push_back({come + ahead[r], leave + ahead[r]});
    }
  }
  return rounds;
}

TEST(SelftestClocks, ADifferenceIsMeasuredWithinTheBarrier) {
  const std::vector<double> ahead = {0, 0.2, -3, 0.01};
  const std::vector<Offset> found = clock_offsets(readings(ahead));
  for (size_t r = 0; r < ahead.size(); ++r) {
    EXPECT_LE(found[r].least, ahead[r] + 1e-6);
    EXPECT_GE(found[r].most, ahead[r] - 1e-6);
    EXPECT_NEAR(found[r].middle(), ahead[r], 0.05);
  }
  EXPECT_EQ(wrong_clocks(found, 1), std::vector<int>{2});
}

TEST(SelftestClocks, TheMajorityIsRight) {
  auto wrong = [](const std::vector<double>& ahead) {
    return wrong_clocks(clock_offsets(readings(ahead)), 1);
  };
  EXPECT_EQ(wrong({0, 0, 0}), std::vector<int>{});
  EXPECT_EQ(wrong({0, 5, 5}), std::vector<int>{0});
  EXPECT_EQ(wrong({0, 5}), std::vector<int>{1});
  EXPECT_EQ(wrong({0, 5, 9, 5}), (std::vector<int>{0, 2}));
}

TEST(SelftestFiles, RanksThatSeeEachOtherAreOneIsland) {
  using Unseen = std::vector<std::set<int>>;
  EXPECT_EQ(islands(Unseen(3)), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(islands({{3}, {3}, {3}, {0, 1, 2}}), (std::vector<int>{0, 0, 0, 1}));
  EXPECT_EQ(islands({{1, 2, 3}, {0}, {0}, {0}}), (std::vector<int>{1, 0, 0, 0}));
  EXPECT_EQ(islands({{1}, {0}}), (std::vector<int>{0, 1}));
  // A file that comes late for one rank does not separate the ranks.
  EXPECT_EQ(islands({{2}, {}, {}}), (std::vector<int>{0, 0, 0}));
}

TEST(SelftestModel, MadeExamplesDependOnTheirPositionAlone) {
  const Features features = {
      {"image", {.type = device::DType::f32, .shape = {4, 3}, .key = "", .pixels = true}},
      {"labels", {.type = device::DType::i32, .shape = {9}, .key = "", .below = 7}},
      {"label", {.type = device::DType::i32, .shape = {}, .key = "", .below = 3}}};
  const models::HostBatch all = made_batch(features, 1, 0, 8), part = made_batch(features, 1, 5, 3);
  for (int64_t i = 0; i < 3 * 12; ++i)
    EXPECT_EQ(part.features.at("image").f32()[i], all.features.at("image").f32()[5 * 12 + i]);
  for (int64_t i = 0; i < 8 * 9; ++i) {
    EXPECT_GE(all.features.at("labels").i32()[i], 0);
    EXPECT_LT(all.features.at("labels").i32()[i], 7);
  }
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(all.features.at("label").i32()[i], i % 3);
}

}  // namespace
}  // namespace modes::selftest
