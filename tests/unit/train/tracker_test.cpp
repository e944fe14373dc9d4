// SPDX-License-Identifier: Apache-2.0
// Tests the best value of a metric: the meaning of "better", the number of evaluations without a
// better value, and restarts.
#include "train/tracker.hpp"

#include <gtest/gtest.h>

namespace train {
namespace {

using Values = std::vector<std::pair<std::string, double>>;
using Measured = std::map<std::string, double>;

const MetricChoice kLoss = {"val", "loss", true}, kScore = {"val", "score", false};

struct Step {
  double value;
  bool better;
  double best;
  int64_t best_step, waiting;
};

void follow(Tracker& tracker, const std::string& metric, const std::vector<Step>& steps,
            int64_t first = 10) {
  for (size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE(i);
    const Step& s = steps[i];
    EXPECT_EQ(tracker.update("val", {{"other", -1e9}, {metric, s.value}}, first + int64_t(i)),
              s.better);
    EXPECT_TRUE(tracker.has_value());
    EXPECT_EQ(tracker.value(), s.best);
    EXPECT_EQ(tracker.step(), s.best_step);
    EXPECT_EQ(tracker.waiting(), s.waiting);
  }
}

TEST(Tracker, TheSmallestIsBest) {
  Tracker t("best", kLoss);
  EXPECT_FALSE(t.has_value());
  follow(t, "loss",
         {{5, true, 5, 10, 0},
          {6, false, 5, 10, 1},
          {5, false, 5, 10, 2},
          {4.5, true, 4.5, 13, 0},
          {4.6, false, 4.5, 13, 1}});
  EXPECT_EQ(t.text(), "val/loss");
}

TEST(Tracker, TheLargestIsBest) {
  Tracker t("best", kScore);
  follow(t, "score",
         {{0.5, true, 0.5, 10, 0},
          {0.4, false, 0.5, 10, 1},
          {0.5, false, 0.5, 10, 2},
          {0.6, true, 0.6, 13, 0},
          {-1, false, 0.6, 13, 1}});
}

// The first value is the best one, for any value and any min_change.
TEST(Tracker, TheFirstValueCounts) {
  for (double first : {0.0, -3.0, 3.0})
    for (const MetricChoice& choice : {kLoss, kScore}) {
      Tracker t("best", choice, 100);
      EXPECT_TRUE(t.update("val", {{choice.metric, first}}, 1));
      EXPECT_EQ(t.value(), first);
    }
}

// A change of exactly min_change is an improvement, and a smaller one is not. The numbers are exact
// in binary.
TEST(Tracker, ChangesOfAtLeastMinChangeCount) {
  Tracker falls("early_stop", kLoss, 0.25);
  follow(falls, "loss",
         {{5, true, 5, 10, 0},
          {4.875, false, 5, 10, 1},
          {4.75, true, 4.75, 12, 0},
          {4.5, true, 4.5, 13, 0},
          {4.3125, false, 4.5, 13, 1},
          {4.2, true, 4.2, 15, 0}});
  Tracker rises("early_stop", kScore, 0.25);
  follow(rises, "score",
         {{1, true, 1, 10, 0},
          {1.125, false, 1, 10, 1},
          {1.25, true, 1.25, 12, 0},
          {1.4375, false, 1.25, 12, 1},
          {1.5, true, 1.5, 14, 0},
          {1.25, false, 1.5, 14, 1}});
}

// Small steps add up, because each is compared with the best value, not with the one before.
TEST(Tracker, SlowChangesCountInTheEnd) {
  Tracker t("early_stop", kLoss, 0.5);
  follow(t, "loss",
         {{5, true, 5, 10, 0},
          {4.75, false, 5, 10, 1},
          {4.5, true, 4.5, 12, 0},
          {4.25, false, 4.5, 12, 1},
          {4, true, 4, 14, 0}});
}

TEST(Tracker, OthersMetricsAndEvaluatorsAreIgnored) {
  Tracker t("best", kLoss);
  EXPECT_TRUE(t.update("val", {{"loss", 5}}, 1));
  EXPECT_FALSE(t.update("test", {{"loss", 1}}, 2));
  EXPECT_FALSE(t.update("val", {{"score", 1}}, 3));
  EXPECT_FALSE(t.update("val", {}, 4));  // an evaluation without a value
  EXPECT_EQ(t.value(), 5);
  EXPECT_EQ(t.step(), 1);
  EXPECT_EQ(t.waiting(), 0);
  Tracker nothing;
  EXPECT_FALSE(nothing.update("val", {{"loss", 1}}, 1));
  EXPECT_FALSE(nothing.has_value());
}

TEST(Tracker, GoesOnFromTheNumbersOfACheckpoint) {
  checkpoint::State saved;
  MemberWriter writer(saved);
  Tracker best("best", kLoss), patience("early_stop", kScore, 0.25), nothing;
  follow(best, "loss", {{5, true, 5, 10, 0}, {6, false, 5, 10, 1}});
  follow(patience, "score", {{1, true, 1, 10, 0}, {1, false, 1, 10, 1}, {1.125, false, 1, 10, 2}});
  for (Tracker* t : {&best, &patience, &nothing}) t->members(writer);
  EXPECT_EQ(saved.numbers, (Measured{{"best_value", 5},
                                     {"best_step", 10},
                                     {"best_waiting", 1},
                                     {"early_stop_value", 1},
                                     {"early_stop_step", 10},
                                     {"early_stop_waiting", 2}}));

  MemberReader reader(saved);
  Tracker best_again("best", kLoss), patience_again("early_stop", kScore, 0.25);
  best_again.members(reader);
  patience_again.members(reader);
  follow(best_again, "loss", {{5, false, 5, 10, 2}, {4, true, 4, 21, 0}}, 20);
  follow(patience_again, "score", {{1.2, false, 1, 10, 3}, {1.25, true, 1.25, 21, 0}}, 20);

  // A rewound run can forget all values.
  Tracker t("best", kLoss);
  EXPECT_TRUE(t.update("val", {{"loss", 1}}, 1));
  EXPECT_FALSE(t.update("val", {{"loss", 2}}, 2));
  t.forget();
  EXPECT_FALSE(t.has_value());
  EXPECT_EQ(t.waiting(), 0);
  EXPECT_TRUE(t.update("val", {{"loss", 9}}, 3));
  EXPECT_EQ(t.value(), 9);
}

TEST(Threshold, SaysWhenItIsPassed) {
  for (const bool below : {true, false}) {
    Threshold t({"val", "loss", {"val/loss", below, 3}});
    const double sign = below ? 1 : -1;
    // Distances from 3, positive before the threshold.
    const std::pair<double, bool> steps[] = {{2, false},  {0, false}, {-0.1, true}, {-2, false},
                                             {-1, false}, {0, false}, {-5, true},   {4, false}};
    for (const auto& [distance, passes] : steps)
      EXPECT_EQ(t.update("val", {{"other", 3 - sign}, {"loss", 3 + sign * distance}}), passes)
          << below << " " << distance;
    EXPECT_FALSE(t.update("other", {{"loss", 3 - sign}}));
    EXPECT_FALSE(t.update("val", {{"other", 3 - sign}}));
    EXPECT_TRUE(t.update("val", {{"loss", 3 - sign}}));
    // A restart knows the side.
    checkpoint::State state;
    MemberWriter writer(state);
    t.members(writer);
    Threshold after({"val", "loss", {"val/loss", below, 3}});
    MemberReader reader(state);
    after.members(reader);
    EXPECT_FALSE(after.update("val", {{"loss", 3 - sign}}));
    after.forget();
    EXPECT_TRUE(after.update("val", {{"loss", 3 - sign}}));
  }
  Threshold none;
  EXPECT_FALSE(none.update("", {{"", -1}}));
  checkpoint::State state;
  MemberWriter writer(state);
  none.members(writer);
  EXPECT_TRUE(state.numbers.empty());
}

TEST(MetricChoice, IsReadFromTheDeck) {
  std::map<std::string, eval::EvalOptions> evals;
  evals["val"].kind = "perplexity";
  evals["val"].options = eval::row_of(evals["val"]).make_options();
  MetricChoice least = parse_metric_choice("val/perplexity:min", evals),
               most = parse_metric_choice("val/perplexity:max", evals);
  EXPECT_TRUE(least.smallest);
  EXPECT_FALSE(most.smallest);
  EXPECT_EQ(least.evaluator, "val");
  EXPECT_EQ(least.metric, "perplexity");
  std::map<std::string, eval::EvalOptions> images;  // with k = [1, 5]
  images["val"].kind = "classification";
  images["val"].options = eval::row_of(images["val"]).make_options();
  EXPECT_EQ(parse_metric_choice("val/prec@1:max", images).metric, "top1");
  EXPECT_EQ(parse_threshold("val/prec@5:above:0.5", images).metric, "top5");
  EXPECT_THROW(parse_metric_choice("val/prec@2:max", images), base::Error);
  for (const char* wrong :
       {"val/perplexity", "perplexity:min", "val/perplexity:least", "val:min/perplexity",
        "test/perplexity:min", "val/perplexities:min", ""}) {
    SCOPED_TRACE(wrong);
    EXPECT_THROW(parse_metric_choice(wrong, evals), base::Error);
  }
}

}  // namespace
}  // namespace train
