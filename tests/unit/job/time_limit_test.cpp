// SPDX-License-Identifier: Apache-2.0
// Tests the time of a job: the margin, limits that a scheduler changes, old answers of PBS, and the
// time that an attempt without a gain requests.
#include "job/time_limit.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <tuple>
#include <utility>

#include "stops_fixture.hpp"

namespace job {
namespace {

using TimeLimitTest = StopsTest;

// Steps and saves may take longer while the run goes on.
TEST_F(TimeLimitTest, LeadFollowsTheOutlook) {
  options.wall_time = "01:00:00";
  options.margin_s = 0;
  begin();
  now = kBegin_s + kHour_s - 100;
  EXPECT_EQ(stops->agree({10, 80, 0}), StopReason::none);
  EXPECT_EQ(stops->agree({10, 95, 0}), StopReason::wall_time);
}

TEST_F(TimeLimitTest, WallTimeCountsFromTheProgramsStart) {
  options.wall_time = "01:00:00";
  options.margin_s = 100;
  now = kBegin_s + 1000;  // MPI took long to start
  begin();
  now = kBegin_s + kHour_s - 101;
  EXPECT_EQ(stops->agree({}), StopReason::none);
  now += 2;
  EXPECT_EQ(stops->agree({}), StopReason::wall_time);
}

// A short job must not spend its whole time in the margin. Messages name both margins.
TEST_F(TimeLimitTest, MarginIsCutForShortJobs) {
  options.wall_time = "00:01:40";
  options.margin_s = 120;
  testing::internal::CaptureStdout();
  begin();
  EXPECT_EQ(count(testing::internal::GetCapturedStdout(),
                  "limits.margin_s = 120 is more than a quarter of the 100 s"),
            1);
  EXPECT_NE(stops->describe().find("margin 25 s (not 120 s: a quarter of the time)"),
            std::string::npos)
      << stops->describe();
  now = kBegin_s + 74;
  EXPECT_EQ(stops->agree({}), StopReason::none);
  now = kBegin_s + 76;
  EXPECT_EQ(stops->agree({}), StopReason::wall_time);
  EXPECT_EQ(stops->text(),
            "wall time: 24 s left; margin 25 s (not 120 s: a quarter of the time) + step 0.0 s + "
            "save 0.0 s");
}

TEST_F(TimeLimitTest, MarginIsNotCutWhereAQuarterHoldsIt) {
  options.wall_time = "00:08:00";
  options.margin_s = 120;
  testing::internal::CaptureStdout();
  begin();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_NE(stops->describe().find("margin 120 s + step + save"), std::string::npos)
      << stops->describe();
}

TEST_F(TimeLimitTest, NothingIsLeftAtAll) {
  options.wall_time = "00:00:10";
  options.margin_s = 120;
  now = kBegin_s + 30;
  begin();
  EXPECT_EQ(stops->agree({}), StopReason::wall_time);
  EXPECT_EQ(stops->text(),
            "wall time: 0 s left; margin 0 s (not 120 s: a quarter of the time) + step 0.0 s + "
            "save 0.0 s");
}

// A job of the length that an attempt without a gain requests reaches its first step, and a shorter
// job does not.
TEST_F(TimeLimitTest, AdviceIsTheSmallestTimeThatWouldDo) {
  for (auto [start, step, save, margin] : {std::tuple{30.0, 5.0, 2.0, 120.0},
                                           {400.0, 1.0, 50.0, 120.0},
                                           {5.0, 900.0, 3.0, 120.0},
                                           {5.0, 900.0, 400.0, 0.0},
                                           {3.0, 0.1, 0.5, 25.0}}) {
    SCOPED_TRACE(fmt::format("start {} step {} save {} margin {}", start, step, save, margin));
    options.margin_s = margin;
    options.wall_time = "00:00:01";
    now = kBegin_s;
    begin();
    now += start;
    const Outlook outlook{step, save, 0};
    ASSERT_EQ(stops->agree(outlook), StopReason::wall_time);
    const std::string text = stops->way_out(outlook);
    const size_t at = text.find("at least ");
    ASSERT_NE(at, text.npos) << text;
    const double enough = seconds_of(text.substr(at + 9, 8));
    for (auto [length, reason] :
         {std::pair{enough, StopReason::none}, {enough - 10.5, StopReason::wall_time}}) {
      options.wall_time = fmt::format("{:02}:{:02}:{:02.0f}", int(length) / 3600,
                                      int(length) / 60 % 60, std::floor(std::fmod(length, 60)));
      now = kBegin_s;
      begin();
      now += start;
      EXPECT_EQ(stops->agree(outlook), reason) << options.wall_time << " " << text;
    }
    EXPECT_EQ(text.find("with the whole margin") != text.npos, margin > (start + step + save) / 3)
        << text;
  }
}

// A scheduler's time begins before the program starts.
TEST_F(TimeLimitTest, AdviceCountsFromTheJobsStart) {
  options.wall_time = "auto";
  options.margin_s = 10;
  answers(kBegin_s + 20, 120, "pbs");  // started 100 s before
  begin();
  now = kBegin_s + 19;
  ASSERT_EQ(stops->agree({}), StopReason::wall_time);
  EXPECT_NE(stops->way_out({}).find("119 s were spent without a step"), std::string::npos)
      << stops->way_out({});
}

// ---------------------------------------------------------------- limits that change

TEST_F(TimeLimitTest, SchedulerChangesTheLimit) {
  options.wall_time = "auto";
  options.margin_s = 100;
  answers(kBegin_s + 1000);
  begin();
  testing::internal::CaptureStdout();
  answers(kBegin_s + 5000);
  now = kBegin_s + 990;
  EXPECT_EQ(stops->agree({}), StopReason::none) << "more time";
  answers(kBegin_s + 1095);
  EXPECT_EQ(stops->agree({}), StopReason::none);
  answers(kBegin_s + 1050);
  EXPECT_EQ(stops->agree({}), StopReason::wall_time) << "less time";
  EXPECT_EQ(count(testing::internal::GetCapturedStdout(), "(slurm has changed the limit)"), 3);
}

// Rounding of answers to whole seconds or minutes is not a change. The earliest end counts.
TEST_F(TimeLimitTest, AnswersThatDifferByLittle) {
  options.wall_time = "auto";
  options.margin_s = 0;
  answers(kBegin_s + 1000);
  begin();
  testing::internal::CaptureStdout();
  stops->agree({});
  for (double end : {1004.0, 995.0, 1003.0}) {
    answers(kBegin_s + end);
    EXPECT_EQ(stops->agree({}), StopReason::none);
  }
  now = kBegin_s + 994;
  EXPECT_EQ(stops->agree({}), StopReason::none);
  now = kBegin_s + 996;
  EXPECT_EQ(stops->agree({}), StopReason::wall_time);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

// A shortened margin grows with the limit, up to the deck's margin.
TEST_F(TimeLimitTest, MarginGrowsWithTheLimit) {
  options.wall_time = "auto";
  options.margin_s = 120;
  for (auto [longer, margin] : {std::pair{200.0, 50.0}, {400.0, 100.0}, {10000.0, 120.0}}) {
    answer = {};
    now = kBegin_s;
    answers(kBegin_s + 40);
    begin();
    EXPECT_NE(stops->describe().find("margin 10 s (not 120 s"), std::string::npos)
        << stops->describe();
    answers(kBegin_s + longer);
    EXPECT_NE(stops->describe().find(fmt::format("margin {:.0f} s", margin)), std::string::npos)
        << stops->describe();
  }
  // A user may cut the limit to make the run save and continue. This leaves the margin unchanged.
  answers(kBegin_s + 300);
  EXPECT_NE(stops->describe().find("margin 120 s + step"), std::string::npos) << stops->describe();
}

TEST_F(TimeLimitTest, SchedulerThatTellsNothing) {
  options.wall_time = "auto";
  answers(0, 0, "pbs");
  testing::internal::CaptureStdout();
  begin();
  stops->agree({});
  answers(0, 0, "pbs");
  stops->agree({});
  EXPECT_EQ(
      count(testing::internal::GetCapturedStdout(), "pbs does not tell how long this job may run"),
      1);
  answers(kBegin_s + 50, 50, "pbs");
  EXPECT_EQ(stops->agree({}), StopReason::none);
  now = kBegin_s + 40;
  EXPECT_EQ(stops->agree({}), StopReason::wall_time) << "the scheduler gives a time now";
}

// ---------------------------------------------------------------- PBS

// A PBS server. Its resources_used.walltime is as old as its last refresh, and is queried every
// `pause_s`.
struct PbsServer : Scheduler {
  struct Job {
    double begin_s, limit_s, refresh_s;
    bool tells_start;
    double pause_s;
  };
  PbsServer(const double& clock, const Job& its_job) : now(clock), job(its_job), end(clock) {}
  std::string qstat() const {
    const double used = std::floor((now - job.begin_s) / job.refresh_s) * job.refresh_s;
    auto clock = [](double s) {
      return fmt::format("{:02}:{:02}:{:02}", int(s) / 3600, int(s) / 60 % 60, int(s) % 60);
    };
    std::string text = "Job Id: 7.server\n    Job_Name = trainer\n";
    if (used > 0) text += "    resources_used.walltime = " + clock(used) + "\n";
    text += "    Resource_List.walltime = " + clock(job.limit_s) + "\n";
    if (job.tells_start) {
      const std::time_t start = std::time_t(unix_s(job.begin_s));
      char line[64];
      std::strftime(line, sizeof line, "%a %b %e %H:%M:%S %Y", std::localtime(&start));
      text += fmt::format("    stime = {}\n", line);
    }
    return text;
  }
  static double unix_s(double at) { return 1795426786 + at; }
  Answer latest() const override {
    if (answer.number == 0 || now >= asked_s + job.pause_s) {
      const int64_t number = answer.number + 1;
      answer = end.read(qstat(), now, unix_s(now));
      answer.number = number;
      asked_s = now;
    }
    return answer;
  }
  Answer first(double) const override { return latest(); }

  const double& now;
  const Job& job;
  mutable PbsEnd end;
  mutable Answer answer;
  mutable double asked_s = 0;
};

struct PbsTest : StopsTest {
  PbsServer::Job job{
      .begin_s = kBegin_s - 4, .limit_s = 100, .refresh_s = 60, .tells_start = true, .pause_s = 10};
  std::string lines;
  // Trains in steps of 1 s until the run stops or PBS kills it. Returns the seconds that were left
  // then.
  double train(std::function<void()> at_each_step = [] {}) {
    options.wall_time = "auto";
    now = kBegin_s;
    testing::internal::CaptureStdout();
    stops = std::make_unique<Stops>(
        world, options, folder, kBegin_s,
        Outside{.now_s = [this] { return now; },
                .ask = [this] { return std::make_unique<PbsServer>(now, job); }});
    stops->describe();
    stops->started(0);
    auto left = [&] { return job.begin_s + job.limit_s - now; };
    while (stops->agree({1, 2, 0}) == StopReason::none && left() > 0) {
      now += 1;
      at_each_step();
    }
    lines = testing::internal::GetCapturedStdout();
    return left();
  }
};

// With margin_s 25 and answers that are up to two minutes old, the run stops in time and reports no
// change of the limit.
TEST_F(PbsTest, StaleAnswersStopInTime) {
  options.margin_s = 25;
  for (double refresh : {10.0, 45.0, 60.0, 120.0, 1e6})
    for (double pause : {5.0, 10.0, 60.0})
      for (bool tells_start : {true, false}) {
        SCOPED_TRACE(fmt::format("refresh {} pause {} stime {}", refresh, pause, tells_start));
        job.refresh_s = refresh;
        job.pause_s = pause;
        job.tells_start = tells_start;
        const double left = train();
        // Without stime the run counts from its own start, 4 s after the job's.
        EXPECT_GE(left, tells_start ? 26 : 22);
        EXPECT_LE(left, 28);
        EXPECT_EQ(count(lines, "changed the limit"), 0) << lines;
      }
}

TEST_F(PbsTest, ChangedLimitIsSeenOnce) {
  options.margin_s = 25;
  job.limit_s = kHour_s;
  double left = train([&] {
    if (now == kBegin_s + 300) job.limit_s = 604;
  });
  EXPECT_NEAR(left, 28, 2);
  EXPECT_NEAR(now, kBegin_s + 572, 2);
  EXPECT_EQ(count(lines, "(pbs has changed the limit)"), 1) << lines;
  job.limit_s = 200;
  left = train([&] {
    if (now == kBegin_s + 100) job.limit_s = 400;
  });
  EXPECT_NEAR(left, 28, 2);
  EXPECT_NEAR(now, kBegin_s + 368, 2);
  EXPECT_EQ(count(lines, "(pbs has changed the limit)"), 1) << lines;
}

// A start time that becomes known later is not a change of the limit. A small change of the limit
// is.
TEST_F(PbsTest, LaterKnowledgeIsNoChange) {
  options.margin_s = 25;
  job = {.begin_s = kBegin_s - 60,
         .limit_s = 300,
         .refresh_s = 45,
         .tells_start = false,
         .pause_s = 10};
  double left = train();
  EXPECT_GE(left, 17);
  EXPECT_LE(left, 28);
  EXPECT_EQ(count(lines, "changed the limit"), 0) << lines;
  job = {.begin_s = kBegin_s - 60,
         .limit_s = 300,
         .refresh_s = 45,
         .tells_start = true,
         .pause_s = 10};
  left = train([&] { job.limit_s = now < kBegin_s + 100 ? 300 : 308; });
  EXPECT_NEAR(left, 28, 2);
  EXPECT_EQ(count(lines, "changed the limit"), 1) << lines;
}

TEST(PbsEndTest, StartAndLimit) {
  const double unix_s = 1795426786;
  const std::time_t start = std::time_t(unix_s) - 500;
  char stime[64];
  std::strftime(stime, sizeof stime, "    stime = %a %b %e %H:%M:%S %Y\n", std::localtime(&start));
  const std::string limit = "    Resource_List.walltime = 01:00:00\n",
                    used = "    resources_used.walltime = 00:08:00\n";
  for (auto [text, since] : {std::pair{limit, 0.0},
                             {limit + used, 480.0},
                             {limit + stime, 500.0},
                             {stime + used + limit, 500.0}}) {
    PbsEnd end(1000);
    EXPECT_NEAR(end.read(text, 1000, unix_s).end_s, 1000 - since + 3600, 0.01) << text;
    EXPECT_NEAR(end.read(limit, 1300, unix_s + 300).end_s, 1000 - since + 3600, 0.01)
        << "never later: " << text;
    EXPECT_EQ(end.read(text, 1000, unix_s).limit_s, 3600);
  }
  // For a suspended job, or after a clock was set back by an hour, the used time is nearer to the
  // truth.
  PbsEnd suspended(1000);
  EXPECT_NEAR(suspended.read(limit + stime + used, 6000, unix_s + 5000).end_s, 1000 + 3600, 0.01);
  PbsEnd unknown(1000);
  EXPECT_EQ(unknown.read(stime + used, 1000, unix_s).end_s, 0);
  EXPECT_EQ(unknown.read("", 1000, unix_s).source, "pbs");
}

}  // namespace
}  // namespace job
