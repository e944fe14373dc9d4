// SPDX-License-Identifier: Apache-2.0
// Tests rules about measures of training, and that checkpoints keep what they read.
#include "train/measure_rule.hpp"

#include <gtest/gtest.h>

#include "config/table.hpp"

namespace {

using train::Bound;

TEST(MeasureRule, ReadsATextAndExplainsAWrongOne) {
  Bound rule;
  ASSERT_TRUE(rule.parse("loss:below:2.5"));
  EXPECT_EQ(rule.of, "loss");
  EXPECT_TRUE(rule.holds(2.4) && !rule.holds(2.5) && !rule.holds(NAN));
  ASSERT_TRUE(rule.parse("a:b:above:-1e3"));
  EXPECT_EQ(rule.of, "a:b");
  EXPECT_TRUE(rule.holds(0) && !rule.holds(-1000) && !rule.holds(NAN));
  for (const char* text : {"", "loss", "loss:2", "loss:under:2", ":below:2",
                           "loss:below:", "loss:below:2x", "loss:below:nan"})
    EXPECT_FALSE(rule.parse(text)) << text;
  const std::vector<models::Measure> measures{{.name = "loss", .unit = "nats", .doc = ""}};
  EXPECT_EQ(train::parse_measure_rule("loss:above:1", measures).value, 1);
  EXPECT_THROW(train::parse_measure_rule("lost:above:1", measures), base::Error);
}

TEST(MeasureRule, KeepsMeasuresInCheckpoints) {
  std::map<std::string, eval::EvalOptions> evals;
  evals["a"].when = "loss:below:2";
  evals["b"];
  const std::vector<models::Measure> measures{{.name = "other", .unit = "1", .doc = ""},
                                              {.name = "loss", .unit = "nats", .doc = ""}};
  train::WatchedMeasures now(evals), later(evals), none;
  EXPECT_NE(now.problem("loss:below:2"), "") << "no step has given a value";
  now.update(measures, {1, 3});
  EXPECT_EQ(now.problem("loss:below:2"), "loss=3 is not below 2");
  EXPECT_EQ(now.problem("loss:above:2"), "");
  EXPECT_EQ(now.problem(""), "");
  checkpoint::State saved;
  train::MemberWriter writer(saved);
  now.members(writer);
  none.members(writer);
  EXPECT_EQ(saved.numbers.size(), 1u);
  train::MemberReader reader(saved);
  later.members(reader);
  EXPECT_EQ(later.problem("loss:below:2"), "loss=3 is not below 2");
}

}  // namespace
