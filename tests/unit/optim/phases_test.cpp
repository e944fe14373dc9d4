// SPDX-License-Identifier: Apache-2.0
// Tests schedules of phases (ssl.md 5) from the deck on. The golden files hold the curves.
#include "optim/phases.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "optim/options.hpp"

namespace {

struct ScheduleDeck {
  optim::ScheduleTables schedules;
  void bind(config::Table& t) { t.named("schedule", schedules, ""); }
};

optim::ScheduleOptions read(const std::string& keys) {
  ScheduleDeck root;
  const std::string text = "[schedule.default]\nkind = \"phases\"\n" + keys;
  config::Deck deck(config::DeckSource{"deck.toml", text, {}}, root);
  EXPECT_EQ(deck.problems().lines, std::vector<std::string>{}) << text;
  return root.schedules.at("default");
}

optim::Schedule make(const std::string& keys, const optim::Clock& clock) {
  return read(keys).make(clock, "schedule.default");
}

TEST(Phases, WarmUpAndCosineOverTheRun) {
  const auto s = make(R"(
phase = [{kind = "linear", start = 0.6, end = 4.8, length = 0.1},
         {kind = "cosine", start = 4.8, end = 0.01, clock = "run"}]
)",
                      {100, 64, 1000});
  EXPECT_FLOAT_EQ(s.at(0), 0.6f);
  EXPECT_FLOAT_EQ(s.at(5), 2.7f);
  const double floor = 0.01;
  for (double w : {0.1, 0.11})  // the cosine begins with its value at this share of the run
    EXPECT_FLOAT_EQ(s.at(std::lround(w * 100)), float(floor + 4.79 / 2 * (1 + std::cos(M_PI * w))));
  EXPECT_NEAR(s.at(99), floor, 2e-3);
  EXPECT_GT(s.at(99), floor);
}

TEST(Phases, EpochsAndSteps) {
  // 4 steps of 25 examples are an epoch of 90 examples and more.
  const optim::Clock clock{20, 25, 90};
  const std::string curve = "phase = [{kind = \"linear\", start = 0, end = 1}]\n";
  const auto steps = make(curve, clock), epochs = make("update = \"epoch\"\n" + curve, clock);
  for (int64_t step = 0; step < 20; ++step) {
    EXPECT_FLOAT_EQ(steps.at(step), float(step) / 20);
    EXPECT_FLOAT_EQ(epochs.at(step), float(step * 25 / 90 * 90) / 500);
  }
  EXPECT_THROW(make("update = \"epoch\"\n" + curve, {20, 25, 0}), base::Error);

  const auto stairs = make(
      "phase = [{kind = \"multistep\", values = [3, 2, 1], milestones = [1, 3], num_epochs = 4}]\n",
      {40, 10, 100});
  for (int64_t step = 0; step < 40; ++step)
    EXPECT_EQ(stairs.at(step), step < 10 ? 3 : step < 30 ? 2 : 1) << step;
}

TEST(Phases, DecaysAndWaves) {
  const optim::Clock clock{40, 1, 40};
  const auto decays =
      make("phase = [{kind = \"step_with_fixed_gamma\", value = 8, gamma = 0.5, num_decays = 3}]\n",
           clock);
  for (int64_t step = 0; step < 40; ++step)
    EXPECT_FLOAT_EQ(decays.at(step), 8 * std::pow(0.5f, float(step / 10))) << step;

  const std::string restart = "kind = \"cosine_warm_restart\", start = 2, end = 0, interval = 0.25";
  const auto half = make("phase = [{" + restart + "}]\n", clock),
             full = make("phase = [{" + restart + ", wave = \"full\"}]\n", clock),
             lower = make("phase = [{" + restart + ", adaptive = true}]\n", clock);
  for (const auto* s : {&half, &full, &lower}) {
    EXPECT_FLOAT_EQ(s->at(0), 2);
    EXPECT_NEAR(s->at(5), 1, 1e-6) << "half of the way to the foot";
  }
  EXPECT_FLOAT_EQ(half.at(10), 2) << "jumps from the foot to the next top";
  EXPECT_NEAR(full.at(10), 0, 1e-6) << "rises from the foot";
  EXPECT_NEAR(full.at(15), 1, 1e-6);
  EXPECT_FLOAT_EQ(lower.at(20), 1) << "tops fall on a cosine";
}

TEST(Phases, FollowTheBatch) {
  const std::string keys = R"(
phase = [{kind = "linear", start = 0.6, end = 4.8, length = 0.1}, {kind = "cosine", start = 4.8, end = 0.048}]
[schedule.default.auto_scale]
value = 0.3
)";
  for (int64_t batch : {256, 1024}) {
    const auto s = make(keys, {1000, batch, 0});
    EXPECT_FLOAT_EQ(s.at(0), 0.6f) << "the warm-up keeps its start";
    EXPECT_FLOAT_EQ(s.at(100), 0.3f * float(batch) / 256);
    EXPECT_NEAR(s.at(999), 0.003 * double(batch) / 256, 1e-5);
  }
  const auto warm = make(keys + "warmup_batch = 512\n", {1000, 1024, 0}),
             whole = make(keys + "warmup_batch = 1024\n", {1000, 1024, 0});
  EXPECT_FLOAT_EQ(warm.at(0), 0.6f);
  EXPECT_FLOAT_EQ(whole.at(0), 1.2f) << "without a warm-up";
}

TEST(Phases, ProblemsOfLengths) {
  auto problem = [](const std::string& keys) {
    const auto found = read(keys).problems({}, "schedule.default");
    return found.empty() ? "" : found[0].key + ": " + found[0].text;
  };
  EXPECT_EQ(problem("phase = [{value = 1}]\n"), "");
  EXPECT_EQ(problem("phase = [{length = 0.3}, {length = 0.7005}]\n"), "");
  EXPECT_NE(problem("").find("[[schedule.default.phase]]"), std::string::npos);
  EXPECT_NE(problem("phase = [{length = 0.3}, {length = 0.6}]\n").find("0.9, but must add up to 1"),
            std::string::npos);
  EXPECT_NE(problem("phase = [{value = 1}, {length = 0.6}]\n").find("phase.0.length: missing"),
            std::string::npos);
  EXPECT_NE(
      problem("phase = [{length = 0.5}, {length = 0.5}, {value = 1}]\n").find("has no length"),
      std::string::npos);
}

}  // namespace
