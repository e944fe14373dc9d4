// SPDX-License-Identifier: Apache-2.0
// Tests the count of images whose class a probe predicts, and the class that probes predict among
// equal scores.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "eval/feature_evaluator.hpp"
#include "eval/logistic.hpp"
#include "feature_rig.hpp"

namespace hits {

using feature_rig::Images;

constexpr int64_t kImages = 23;

// Returns the counts of three probes, which predict their own number for each image. Those with a
// bit of `broken` have no finite score. The last count is of missing scores.
std::vector<double> counted(unsigned broken, int ranks, const std::string& folder = "") {
  const Images train{"few", 1}, test{"val", kImages, 2};
  const data::Dataset set = feature_rig::data_set(test);
  std::vector<std::vector<double>> all(size_t(ranks), std::vector<double>(4, 0.0));
  rig::ThreadRanks(ranks).run_all([&](comm::Comm& world) {
    feature_rig::MadeUpFeatures pass(train, test);
    std::unique_ptr<eval::Journal> journal;
    if (!folder.empty())
      journal = std::make_unique<eval::Journal>(world, folder, "test", eval::Journal::Identity{});
    const eval::Context context{.world = world,
                                .dataset = set,
                                .loader = {},
                                .batch = 6,
                                .pass = &pass,
                                .forward = rig::forward,
                                .interrupted = [] { return false; },
                                .journal = journal.get()};
    auto predict = [&](size_t probe, const float*) {
      return broken >> probe & 1 ? int64_t{-1} : int64_t(probe);
    };
    EXPECT_TRUE(eval::count_hits(context, predict, all[size_t(world.rank())]));
  });
  for (const std::vector<double>& of_rank : all) EXPECT_EQ(of_rank, all[0]);
  return all[0];
}

// An evaluator tells no number of any probe if one of them has none.
TEST(CountHits, EveryMissingScoreCounts) {
  std::vector<double> of_class(3, 0.0);
  for (int64_t i = 0; i < kImages; ++i) ++of_class[size_t(Images{"val", kImages, 2}.label_of(i))];
  for (unsigned broken = 0; broken < 8; ++broken)
    for (int ranks : {1, 2}) {
      std::vector<double> want = of_class;
      want.push_back(0);
      for (size_t probe = 0; probe < 3; ++probe)
        if (broken >> probe & 1) {
          want[probe] = 0;
          want[3] += double(kImages);
        }
      EXPECT_EQ(counted(broken, ranks), want) << broken << " on " << ranks << " ranks";
    }
}

// The journal keeps missing scores, too.
TEST(CountHits, MissingScoresAreTakenOver) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("hits_{}", getpid())).string();
  const std::vector<double> want = counted(1, 1);
  EXPECT_EQ(counted(1, 2, folder), want);
  EXPECT_EQ(counted(0, 1, folder), want) << "all examples come from the journal";
  std::filesystem::remove_all(folder);
}

TEST(Probes, AmongEqualScoresTheFirstClassWins) {
  const float above[] = {1}, below[] = {-1};
  const eval::LogisticProbe logistic{{0}, {1}, {0, 0, 1, 0, 1, 0}};  // [classes, features + 1]
  EXPECT_EQ(logistic.predict(above), 1);
  EXPECT_EQ(logistic.predict(below), 0);
  const eval::LinearProbe linear{{0}, {1}, {0, 1, 1, 0, 0, 0}};  // [features + 1, classes]
  std::vector<double> scores;
  EXPECT_EQ(linear.predict(above, scores), 1);
  EXPECT_EQ(linear.predict(below, scores), 0);
  const eval::LogisticProbe alike{{0}, {1}, std::vector<double>(8, 1.0)};
  EXPECT_EQ(alike.predict(above), 0);
}

TEST(Probes, OneScoreThatIsNotFiniteIsNoClass) {
  const float one[] = {1};
  std::vector<double> scores;
  for (size_t bad = 0; bad < 3; ++bad)
    for (const double value : {double(NAN), double(INFINITY), -double(INFINITY)}) {
      std::vector<double> of_classes = {1, 2, 3, 0, 0, 0};
      of_classes[bad] = value;
      EXPECT_EQ((eval::LinearProbe{{0}, {1}, of_classes}.predict(one, scores)), -1);
      std::vector<double> by_class = {1, 0, 2, 0, 3, 0};
      by_class[2 * bad] = value;
      EXPECT_EQ((eval::LogisticProbe{{0}, {1}, by_class}.predict(one)), -1);
    }
}

}  // namespace hits
