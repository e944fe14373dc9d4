// SPDX-License-Identifier: Apache-2.0
#include "config/duration.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config/table.hpp"
#include "tests/unit/recorded.hpp"

namespace {

using config::Duration;
using nlohmann::json;

const json& golden() {
  static const json data =
      json::parse(std::ifstream(tests::source_file("tests/golden/durations.json")));
  return data;
}

// Returns the published configuration as our Duration. False if a Duration cannot express it: the
// engine refuses two suffixes, and an explicit None is an absent key.
bool to_duration(const json& published, Duration& out) {
  out = {};
  if (published.size() > 1) return false;
  for (const auto& [key, value] : published.items()) {
    if (value.is_null()) return false;
    out.value = value.get<double>();
    if (key == "x_steps") out.unit = Duration::Unit::steps;
    if (key == "x_examples") out.unit = Duration::Unit::examples;
    if (key == "x_epochs") out.unit = Duration::Unit::epochs;
    if (key == "x_percent") out.unit = Duration::Unit::fraction;
  }
  return true;
}

TEST(Duration, StepsEqualThePublishedCode) {
  int compared = 0, refused = 0, unset = 0;
  for (const json& entry : golden().at("steps")) {
    SCOPED_TRACE(entry.dump());
    Duration d;
    if (!to_duration(entry.at("config"), d)) continue;
    auto steps = [&] {
      return d.steps(entry.at("batch_size"), entry.at("data_size"), entry.at("total_steps"), -77);
    };
    const json& result = entry.at("result");
    if (!d.set()) {
      EXPECT_EQ(steps(), -77);  // the published code returns the default, or raises without one
      ++unset;
    } else if (result.is_string()) {
      EXPECT_EQ(result, "AssertionError");
      EXPECT_THROW(steps(), base::Error);
      ++refused;
    } else {
      EXPECT_EQ(steps(), result.get<int64_t>());
      ++compared;
    }
  }
  EXPECT_EQ(compared, 28);
  EXPECT_EQ(refused, 2);
  EXPECT_EQ(unset, 2);
}

TEST(Duration, RoundsHalfToEven) {
  auto examples = [](double n) { return Duration{Duration::Unit::examples, n}.steps(2, 0, 0); };
  EXPECT_EQ(examples(5), 2);  // 2.5
  EXPECT_EQ(examples(7), 4);  // 3.5
  EXPECT_EQ(examples(1), 1);  // 0.5 would be 0
}

TEST(Duration, StepsAreTakenAsTheyAre) {
  EXPECT_EQ((Duration{Duration::Unit::steps, 366'500}.steps(0, 0, 0)), 366'500);
  EXPECT_EQ((Duration{Duration::Unit::steps, 0}.steps(8, 100, 10)), 0);
}

base::Exit exit_of(Duration d, int64_t batch, int64_t data, int64_t total) {
  try {
    d.steps(batch, data, total);
  } catch (const base::Error& e) {
    return e.code();
  }
  return base::Exit::finished;
}

TEST(Duration, WhatCannotBeConvertedIsRefused) {
  // The size of the data is unknown.
  EXPECT_EQ(exit_of({Duration::Unit::epochs, 2}, 8, 0, 100), base::Exit::config);
  // The total is a fraction of itself.
  EXPECT_EQ(exit_of({Duration::Unit::fraction, 0.5}, 8, 100, 0), base::Exit::config);
  // The value does not fit.
  EXPECT_EQ(exit_of({Duration::Unit::epochs, 1e300}, 8, 100, 10), base::Exit::config);
  EXPECT_EQ(exit_of({Duration::Unit::steps, 1e300}, 8, 100, 10), base::Exit::config);
  EXPECT_EQ(exit_of({Duration::Unit::steps, -1}, 8, 100, 10), base::Exit::internal);
  EXPECT_EQ(exit_of({Duration::Unit::examples, 8}, 0, 100, 10), base::Exit::internal);
}

// A length that may be a number of steps or the word "input".
struct Length {
  Duration total;
  void bind(config::Table& t) { t.duration("total", total, "length").above(0).one_of({"input"}); }
};
struct Lengths {
  Length train;
  void bind(config::Table& t) { t.table("train", train, "what"); }
};
struct ReadLength {
  Lengths root;
  config::Deck deck;
  explicit ReadLength(const std::string& text)
      : deck(config::DeckSource{"run.toml", "[train]\n" + text, {}}, root) {}
};

TEST(Duration, MayBeAWord) {
  const ReadLength read("total_steps = \"input\"\n");
  EXPECT_FALSE(read.deck.problems().any());
  EXPECT_TRUE(std::isinf(read.root.train.total.value));
  EXPECT_EQ(read.deck.flat().at("train.total"), "\"input\"");
  // The resolved text reads back as the same duration.
  EXPECT_NE(read.deck.resolved().find("total_steps = \"input\""), std::string::npos);
  Lengths again;
  const config::Deck resolved({"run.toml", read.deck.resolved(), {}}, again);
  EXPECT_EQ(resolved.flat(), read.deck.flat());
  Lengths override;
  EXPECT_FALSE(
      config::Deck({"run.toml", "[train]\ntotal_epochs = 3\n", {"train.total_steps=input"}},
                   override)
          .problems()
          .any());
  EXPECT_TRUE(std::isinf(override.train.total.value));
  EXPECT_NE(config::describe([](config::Table& t) { Lengths().bind(t); }, "train")
                .find("> 0 or \"input\""),
            std::string::npos);
  // As a length it is refused, because only the owner of the key knows the input.
  EXPECT_EQ(exit_of(read.root.train.total, 8, 100, 10), base::Exit::config);
}

TEST(Duration, OtherWordsAreErrors) {
  auto problem = [](const std::string& line) {
    const ReadLength read(line);
    const auto& lines = read.deck.problems().lines;
    return lines.size() == 1 ? lines.front() : std::to_string(lines.size()) + " problems";
  };
  EXPECT_EQ(problem("total_steps = \"inputs\"\n"),
            "run.toml:2: train.total_steps: expected an integer or \"input\", found the string "
            "\"inputs\"");
  EXPECT_NE(problem("total_epochs = \"input\"\n").find("write total_steps = \"input\""),
            std::string::npos);
  EXPECT_NE(problem("total_steps = inf\n").find("expected an integer"), std::string::npos);
  EXPECT_NE(problem("total_epochs = inf\n").find("not a finite number"), std::string::npos);
  EXPECT_NE(problem("total_steps = 0\n").find("must be > 0"), std::string::npos);
}

TEST(IsTime, EqualsThePublishedCode) {
  int compared = 0;
  for (const json& entry : golden().at("itstime")) {
    SCOPED_TRACE(entry.dump());
    int64_t every = entry.at("every").is_null() ? 0 : entry.at("every").get<int64_t>();
    int64_t total = entry.at("total");
    json hits = json::array();
    for (int64_t step = 1; step <= total; ++step)
      if (config::is_time(step, every, total, entry.at("last"), entry.at("first")))
        hits.push_back(step);
    EXPECT_EQ(hits, entry.at("true_at"));
    ++compared;
  }
  EXPECT_EQ(compared, 9);
}

TEST(Hms, EqualsThePublishedCode) {
  EXPECT_EQ(golden().at("hms").size(), 15u);
  for (const auto& [seconds, text] : golden().at("hms").items())
    EXPECT_EQ(base::hms(std::stod(seconds)), text.get<std::string>()) << seconds;
}

}  // namespace
