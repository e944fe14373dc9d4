// SPDX-License-Identifier: Apache-2.0
#include "config/duration.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "base/text.hpp"
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
