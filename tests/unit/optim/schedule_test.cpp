// SPDX-License-Identifier: Apache-2.0
// Compares schedules with the published function (schedules.h5) and its unit vectors.
#include "optim/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "golden_file.hpp"
#include "optim/options.hpp"

namespace {

using config::Duration;
using nlohmann::json;
using optim::Clock;
using optim::ScheduleOptions;

Duration duration(const json& a, const std::string& name) {
  if (a.contains(name + "_steps")) return {Duration::Unit::steps, a[name + "_steps"]};
  if (a.contains(name + "_examples")) return {Duration::Unit::examples, a[name + "_examples"]};
  if (a.contains(name + "_epochs")) return {Duration::Unit::epochs, a[name + "_epochs"]};
  if (a.contains(name + "_percent")) return {Duration::Unit::fraction, a[name + "_percent"]};
  return {};
}

ScheduleOptions options_of(const json& a) {
  ScheduleOptions o;
  o.kind = a.value("decay_type", "stair");
  o.mult = a.value("base", 1.0);
  o.scale_with_batch = a.value("scale_with_batchsize", false);
  o.warmup = duration(a, "warmup");
  o.cooldown = duration(a, "cooldown");
  o.shape = optim::schedule_rows().at(o.kind).make_options();
  if (auto* p = dynamic_cast<optim::PolynomialShape*>(o.shape.get())) {
    p->end = a.value("end", a.value("linear_end", 0.0));
    p->power = a.value("power", 1.0);
  }
  if (auto* p = dynamic_cast<optim::RsqrtShape*>(o.shape.get()); p && a.contains("timescale"))
    p->timescale = {Duration::Unit::steps, a["timescale"]};
  if (auto* p = dynamic_cast<optim::StairShape*>(o.shape.get()); p && a.contains("steps")) {
    p->at_steps = a["steps"].get<std::vector<double>>();
    p->mults = a["mults"].get<std::vector<double>>();
  }
  return o;
}

TEST(Schedule, Golden) {
  golden::File file("schedules.h5");
  double worst = 0;
  for (const std::string& name : file.children("/")) {
    const json a = json::parse(file.text("/" + name, "args"));
    const optim::Schedule s =
        options_of(a).make({a["total_steps"], a["batch_size"], a["data_size"]}, name);
    const auto steps = file.floats("/" + name + "/step"),
               values = file.floats("/" + name + "/value");
    for (size_t i = 0; i < steps.size(); ++i) {
      const double tol = 2e-6 * std::abs(double(values[i])) + 5e-7;
      const double d = std::abs(double(s.at(int64_t(steps[i]))) - double(values[i]));
      EXPECT_LE(d, tol) << name << " at " << steps[i];
      worst = std::max(worst, d / tol);
    }
  }
  std::printf("schedules: largest deviation / tolerance %.3f\n", worst);
}

TEST(Schedule, LastUpdateOfTheFullRunIsZero) {
  ScheduleOptions o;
  o.kind = "cosine";
  o.warmup = {Duration::Unit::steps, 10000};
  const optim::Schedule s = o.make({366500, 8192, 82783}, "s");
  EXPECT_EQ(s.at(0), 0.0f);
  EXPECT_EQ(s.at(10000), 1.0f);
  EXPECT_NEAR(s.at(100000), 0.850816734, 1e-6);
  EXPECT_EQ(s.at(366499), 0.0f);
}

TEST(Schedule, UnitVectors) {
  auto make = [](const std::string& kind, auto&& set) {
    ScheduleOptions o;
    o.kind = kind;
    o.mult = .5;
    o.scale_with_batch = true;
    o.warmup = o.cooldown = {Duration::Unit::steps, 5};
    o.shape = optim::schedule_rows().at(kind).make_options();
    set(o.shape.get());
    return o.make({21, 512, 0}, kind);
  };
  auto nothing = [](auto*) {};
  EXPECT_FLOAT_EQ(make("linear", nothing).at(13), .5f);
  EXPECT_FLOAT_EQ(make("cosine", nothing).at(13), .5f);
  auto polynomial = make("polynomial", [](auto* s) {
    auto* p = dynamic_cast<optim::PolynomialShape*>(s);
    p->end = .1;
    p->power = 2;
  });
  EXPECT_FLOAT_EQ(polynomial.at(13), .325f);
  auto rsqrt = make("rsqrt", [](auto* s) {
    dynamic_cast<optim::RsqrtShape*>(s)->timescale = {Duration::Unit::steps, 1};
  });
  EXPECT_FLOAT_EQ(rsqrt.at(13), 1.0f / 3);
  EXPECT_FLOAT_EQ(rsqrt.at(3), .6f);
  EXPECT_FLOAT_EQ(rsqrt.at(20), .05f);
  auto stair = make("stair", [](auto* s) {
    auto* p = dynamic_cast<optim::StairShape*>(s);
    p->at_steps = {10};
    p->mults = {.5};
  });
  EXPECT_FLOAT_EQ(stair.at(5), 1.0f);
  EXPECT_FLOAT_EQ(stair.at(10), .5f);
}

TEST(Schedule, StairInEveryForm) {
  const Clock clock{1000, 64, 6400};  // 100 steps per epoch
  auto make = [&](auto&& set) {
    ScheduleOptions o;
    o.kind = "stair";
    auto p = std::make_shared<optim::StairShape>();
    set(*p);
    p->mults = {.5, .25};
    o.shape = p;
    return o.make(clock, "s");
  };
  const std::vector<optim::Schedule> forms = {make([](auto& p) {
                                                p.at_steps = {100, 500};
                                              }),
                                              make([](auto& p) {
                                                p.at_examples = {6400, 32000};
                                              }),
                                              make([](auto& p) {
                                                p.at_epochs = {1, 5};
                                              }),
                                              make([](auto& p) {
                                                p.at_fraction = {.1, .5};
                                              })};
  for (const optim::Schedule& s : forms) {
    EXPECT_EQ(s.at(99), 1.0f);
    EXPECT_EQ(s.at(100), .5f);
    EXPECT_EQ(s.at(499), .5f);
    EXPECT_EQ(s.at(500), .25f);
  }
}

TEST(Schedule, RsqrtShift) {
  ScheduleOptions o;
  o.kind = "rsqrt";
  o.warmup = {Duration::Unit::steps, 10};
  auto p = std::make_shared<optim::RsqrtShape>();
  p->timescale = {Duration::Unit::steps, 50};
  p->shift = {Duration::Unit::steps, 30};
  o.shape = p;
  const optim::Schedule s = o.make({1000, 1, 1}, "s");
  EXPECT_FLOAT_EQ(s.at(110), float(1 / std::sqrt(1 + 130.0 / 50)));
  EXPECT_FLOAT_EQ(s.at(5), float(.5 / std::sqrt(1 + 30.0 / 50)));
}

TEST(Schedule, CompositeRunsItsPartsOnTheirOwnClocks) {
  ScheduleOptions o;
  o.kind = "composite";
  o.mult = 2;
  auto c = std::make_shared<optim::CompositeShape>();
  c->parts.resize(2);
  c->parts[0].warmup = {Duration::Unit::fraction, .25};  // of this part: 100 of 400 steps
  c->parts[1].kind = "linear";
  c->parts[1].from = {Duration::Unit::fraction, .8};  // of the run: step 400
  o.shape = c;
  const optim::Schedule s = o.make({500, 1, 1}, "s");
  EXPECT_EQ(s.at(0), 0.0f);
  EXPECT_EQ(s.at(50), 1.0f);
  EXPECT_EQ(s.at(399), 2.0f);
  EXPECT_EQ(s.at(400), 2.0f);
  EXPECT_FLOAT_EQ(s.at(450), 1.0f);
  EXPECT_EQ(s.at(500), 0.0f);
  c->parts[1].from = {Duration::Unit::steps, 500};
  EXPECT_THROW(o.make({500, 1, 1}, "s"), base::Error);
}

TEST(Schedule, RefusesWarmUpLongerThanTheRun) {
  ScheduleOptions o;
  o.warmup = {Duration::Unit::steps, 10};
  EXPECT_THROW(o.make({10, 1, 1}, "schedule.default"), base::Error);
  EXPECT_NO_THROW(o.make({1, 1, 1}, "schedule.default"));
}

TEST(Schedule, RampsOfZeroAreOffInEveryUnit) {
  for (auto unit : {Duration::Unit::steps, Duration::Unit::examples, Duration::Unit::epochs,
                    Duration::Unit::fraction}) {
    ScheduleOptions o;
    o.warmup = o.cooldown = {unit, 0};
    const optim::Schedule s = o.make({10, 2, 100}, "schedule.default");
    EXPECT_EQ(s.at(0), 1.0f);
    EXPECT_EQ(s.at(9), 1.0f);
    EXPECT_EQ(s.at(10), 1.0f);
  }
}

TEST(Schedule, ProblemsAreThoseThatAreKnown) {
  ScheduleOptions o;
  o.warmup = {Duration::Unit::epochs, 2};
  EXPECT_TRUE(o.problems({10, 10, 0}, "schedule.a").empty());   // the size of the data is unknown
  EXPECT_TRUE(o.problems({0, 10, 100}, "schedule.a").empty());  // the length of the run is unknown
  ASSERT_EQ(o.problems({10, 10, 100}, "schedule.a").size(), 1u);
  EXPECT_EQ(o.problems({10, 10, 100}, "schedule.a")[0].key, "schedule.a.warmup");
  EXPECT_TRUE(o.problems({21, 10, 100}, "schedule.a").empty());

  // A composite reports all problems at once: the second part is empty, and the warm-up of the
  // third does not fit.
  auto c = std::make_shared<optim::CompositeShape>();
  c->parts.resize(4);
  c->parts[1].from = c->parts[2].from = {Duration::Unit::steps, 5};
  c->parts[2].warmup = {Duration::Unit::steps, 3};
  c->parts[3].from = {Duration::Unit::fraction, .8};
  o = {};
  o.kind = "composite";
  o.shape = c;
  std::vector<optim::Problem> found = o.problems({10, 1, 0}, "schedule.a");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].key, "schedule.a.part.2.from");
  EXPECT_EQ(found[1].key, "schedule.a.part.2.warmup");
}

TEST(Schedule, MissingTableIsConstantOne) {
  optim::ScheduleTables tables;
  tables["slow"].mult = .5;
  auto s = optim::make_schedules({"default", "slow"}, tables, {100, 1, 1});
  EXPECT_EQ(s[0].at(0), 1.0f);
  EXPECT_EQ(s[1].at(99), .5f);
}

}  // namespace
