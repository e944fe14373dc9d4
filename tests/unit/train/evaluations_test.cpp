// SPDX-License-Identifier: Apache-2.0
// Tests the times of evaluators: by their period, at start, at the end, and again after an
// interrupted attempt.
#include "train/evaluations.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace train {
namespace {

constexpr int64_t kTotal = 10;

std::vector<int64_t> due_steps(const EvaluationTimes& times) {
  std::vector<int64_t> out;
  for (int64_t step = 1; step <= kTotal; ++step)
    if (times.due(step, kTotal, step == kTotal)) out.push_back(step);
  return out;
}

using Steps = std::vector<int64_t>;

TEST(EvaluationTimes, AreThePeriodAndTheEnd) {
  EXPECT_EQ(due_steps({.every = 3, .at_end = false}), (Steps{3, 6, 9}));
  EXPECT_EQ(due_steps({.every = 4}), (Steps{4, 8, 10}));
  EXPECT_EQ(due_steps({.every = 5}), (Steps{5, 10}));
  EXPECT_EQ(due_steps({.every = 0}), (Steps{10}));
  EXPECT_EQ(due_steps({.every = 0, .at_end = false}), Steps{});
  // If a period ends close to the end, only the last step evaluates.
  EXPECT_EQ(due_steps({.every = 9}), (Steps{10}));
}

TEST(EvaluationTimes, AreDescribedForTheLog) {
  EXPECT_EQ((EvaluationTimes{.every = 4, .at_start = true}).describe(), "every 4");
  EXPECT_EQ((EvaluationTimes{.every = 0}).describe(), "at the end");
  EXPECT_EQ((EvaluationTimes{.at_start = true}).describe(), "at start and end");
  EXPECT_EQ((EvaluationTimes{.at_start = true, .at_end = false}).describe(), "at the start");
  EXPECT_EQ((EvaluationTimes{.at_end = false}).describe(), "never");
}

// early_stop ends the run at a step that has no other reason to evaluate.
TEST(EvaluationTimes, AnEarlyEndIsAnEnd) {
  EXPECT_TRUE((EvaluationTimes{.every = 4}.due(5, kTotal, true)));
  EXPECT_FALSE((EvaluationTimes{.every = 4}.due(5, kTotal, false)));
  EXPECT_FALSE((EvaluationTimes{.every = 4, .at_end = false}.due(5, kTotal, true)));
}

TEST(IsWanted, OnlyMissingValuesAreMadeUpFor) {
  const EvaluationTimes times{.every = 4, .at_start = true};
  int asked = 0;
  auto has = [&] {
    ++asked;
    return true;
  };
  auto lacks = [&] {
    ++asked;
    return false;
  };
  EXPECT_TRUE(is_wanted(times, Which::due, 4, kTotal, false, has));
  EXPECT_TRUE(is_wanted(times, Which::at_start, 0, kTotal, false, has));
  EXPECT_FALSE(is_wanted({.every = 4}, Which::at_start, 0, kTotal, false, has));
  EXPECT_FALSE(is_wanted(times, Which::missing, 5, kTotal, false, lacks));
  EXPECT_EQ(asked, 0);  // the answer needs an exchange of ranks, so only useful calls ask for it
  EXPECT_FALSE(is_wanted(times, Which::missing, 4, kTotal, false, has));
  EXPECT_TRUE(is_wanted(times, Which::missing, 4, kTotal, false, lacks));
  EXPECT_TRUE(is_wanted(times, Which::missing, 5, kTotal, true, lacks));
  EXPECT_EQ(asked, 3);
}

TEST(EvaluationLine, HasAllValues) {
  const eval::Result result{{{"perplexity", 31.25}, {"top1", 1.0 / 3}}, 40, "images"};
  EXPECT_EQ(evaluation_line("val", 12, result, 0.16),
            "eval=val step=12 perplexity=31.25 top1=0.333333 images=40 s=0.2");
}

// One value that is not finite is enough, wherever it is.
TEST(NonfiniteProblem, NamesTheFirstValueThatIsNotFinite) {
  EXPECT_EQ(nonfinite_problem("val", 3, {{{"a", 1}, {"b", -1e300}}, 4}), "");
  for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)})
    for (const auto& [values, name] :
         {std::pair<std::vector<std::pair<std::string, double>>, std::string>{
              {{"a", bad}, {"b", 1}}, "a"},
          {{{"a", 1}, {"b", bad}}, "b"},
          {{{"a", bad}, {"b", NAN}}, "a"}})
      EXPECT_TRUE(nonfinite_problem("val", 3, {values, 4})
                      .starts_with("evaluator val: " + name + " is not finite at step 3 "));
}

}  // namespace
}  // namespace train
