// SPDX-License-Identifier: Apache-2.0
// Tests the shares of images whose class is among the first ones, and the class that probes predict
// among equal scores.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "eval/features/feature_evaluator.hpp"
#include "eval/fits/least_squares.hpp"
#include "eval/fits/logistic.hpp"
#include "feature_rig.hpp"

namespace probe_shares {

constexpr double kMissing = NAN;

TEST(Shares, AreByRowThenByTop) {
  const std::vector<double> places = {0, 1, 2, INFINITY, 1, 1, 0, 4};
  EXPECT_EQ(eval::shares(places, 4, {1, 2, 5}),
            (std::vector<double>{0.25, 0.5, 0.75, 0.25, 0.75, 1}));
}

// If one place is missing, every share is NaN.
TEST(Shares, EveryMissingPlaceCounts) {
  for (size_t broken = 0; broken < 6; ++broken) {
    std::vector<double> places(6, 0.0);
    places[broken] = kMissing;
    for (double share : eval::shares(places, 2, {1, 5})) EXPECT_TRUE(std::isnan(share)) << broken;
  }
}

// The journal keeps missing places, too.
TEST(Shares, MissingPlacesAreTakenOver) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("shares_{}", getpid())).string();
  for (const char* kind : {"fewshot", "low_shot", "knn"}) {
    std::filesystem::remove_all(folder);
    for (const auto& [ranks, broken] : {std::pair{2, "val"}, {1, ""}})
      EXPECT_TRUE(std::isnan(
          feature_rig::evaluate(kind, {.ranks = ranks, .broken = broken, .journal = folder})[0]
              .values.at(0)
              .second))
          << kind << " on " << ranks << " ranks; the second time, all come from the journal";
  }
  std::filesystem::remove_all(folder);
}

TEST(Probes, AmongEqualScoresTheFirstClassWins) {
  const float above[] = {1}, below[] = {-1};
  const eval::LogisticProbe logistic{{0}, {1}, {0, 0, 1, 0, 1, 0}};  // [classes, features + 1]
  std::vector<double> scores;
  EXPECT_EQ(logistic.predict(above, scores), 1);
  EXPECT_EQ(logistic.predict(below, scores), 0);
  const eval::LinearProbe linear{{0}, {1}, {0, 1, 1, 0, 0, 0}};  // [features + 1, classes]
  EXPECT_EQ(linear.predict(above, scores), 1);
  EXPECT_EQ(linear.predict(below, scores), 0);
  const eval::LogisticProbe alike{{0}, {1}, std::vector<double>(8, 1.0)};
  EXPECT_EQ(alike.predict(above, scores), 0);
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
      EXPECT_EQ((eval::LogisticProbe{{0}, {1}, by_class}.predict(one, scores)), -1);
    }
}

}  // namespace probe_shares
