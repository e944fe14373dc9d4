// SPDX-License-Identifier: Apache-2.0
// Tests stops of runs: reasons, their order, the lead, files, signals and budgets.
#include <gtest/gtest.h>

#include <csignal>
#include <tuple>
#include <utility>

#include "stops_fixture.hpp"

namespace job {
namespace {

TEST_F(StopsTest, NoReasonNoStop) {
  begin();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(next({1e6, 1e6, 1e6}), StopReason::none);
  EXPECT_EQ(stops->text(), "");
}

TEST(StopsExit, OnlyWhatMayGoOnIsRequeued) {
  for (bool gained : {true, false})
    for (bool half_over : {true, false}) {
      EXPECT_EQ(exit_of(StopReason::budget, gained, half_over), base::Exit::stopped);
      EXPECT_EQ(exit_of(StopReason::stop_file, gained, half_over), base::Exit::stopped);
      EXPECT_EQ(exit_of(StopReason::wall_time, gained, half_over),
                gained ? base::Exit::requeue : base::Exit::stopped);
      EXPECT_EQ(exit_of(StopReason::signal, gained, half_over),
                gained || !half_over ? base::Exit::requeue : base::Exit::stopped);
    }
}

// A job script signals before the end of a short job. An attempt that gained nothing before the
// signal must not be repeated.
TEST_F(StopsTest, SignalAfterHalfTheTimeIsAsGoodAsItsEnd) {
  options.signals = {"USR2"};
  raise_usr2();
  for (const char* limit : {"01:00:00", "auto"})
    for (bool late : {false, true}) {
      SCOPED_TRACE(fmt::format("{} late {}", limit, late));
      options.wall_time = limit;
      options.margin_s = 10;
      now = kBegin_s;
      answers(kBegin_s + kHour_s, kHour_s);
      begin();
      now = kBegin_s + (late ? 0.51 : 0.49) * kHour_s;
      ASSERT_EQ(stops->agree({}), StopReason::signal);
      EXPECT_EQ(stops->exit(true), base::Exit::requeue);
      EXPECT_EQ(stops->exit(false), late ? base::Exit::stopped : base::Exit::requeue);
      EXPECT_EQ(stops->too_short(false), late);
      EXPECT_FALSE(stops->too_short(true));
    }
  options.wall_time = "none";
  begin();
  ASSERT_EQ(next(), StopReason::signal);
  EXPECT_EQ(stops->exit(false), base::Exit::requeue);
}

// The lead is margin + one more step + a save. Each is tested alone, and all together.
TEST_F(StopsTest, LeadHoldsMarginStepAndSave) {
  options.wall_time = "01:00:00";
  for (auto [margin, step, save] :
       {std::tuple{120.0, 0.0, 0.0}, {0.0, 40.0, 0.0}, {0.0, 0.0, 70.0}, {120.0, 40.0, 70.0}}) {
    SCOPED_TRACE(fmt::format("margin {} step {} save {}", margin, step, save));
    options.margin_s = margin;
    const double lead = margin + step + save;
    EXPECT_EQ(with_left(lead + 0.5, {step, save, 0}), StopReason::none);
    EXPECT_EQ(with_left(lead - 0.5, {step, save, 0}), StopReason::wall_time);
    EXPECT_EQ(
        stops->text(),
        fmt::format("wall time: {:.0f} s left; margin {:.0f} s + step {:.1f} s + save {:.1f} s",
                    lead - 0.5, margin, step, save));
  }
}

TEST_F(StopsTest, NeverBackFromStopToGo) {
  options.wall_time = "auto";
  options.margin_s = 10;
  answers(kBegin_s + 1000, 1000);
  begin();
  now = kBegin_s + 995;
  ASSERT_EQ(stops->agree({}), StopReason::wall_time);
  const std::string text = stops->text();
  answers(kBegin_s + 100000, 100000);
  file("stop");
  world.other = StopReason::signal;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next(), StopReason::wall_time);
  EXPECT_EQ(stops->text(), text);
}

// The strongest of several reasons wins: a reason against a requeue precedes one for it.
TEST_F(StopsTest, StrongestReasonWins) {
  options.wall_time = "01:00:00";
  options.margin_s = 10;
  options.core_hours = 5;
  options.signals = {"USR2"};
  raise_usr2();
  for (int set = 0; set < 32; ++set) {
    SCOPED_TRACE(set);
    for (const char* name : {"stop", "save"}) std::filesystem::remove(folder + "/" + name);
    options.signals = set & 4 ? std::vector<std::string>{"USR2"} : std::vector<std::string>{};
    now = kBegin_s;
    begin();
    if (set & 1) file("save");
    if (set & 2) now = kBegin_s + kHour_s;
    if (set & 16) file("stop");
    StopReason strongest = StopReason::none;
    for (auto [bit, reason] : {std::pair{1, StopReason::save_file},
                               {2, StopReason::wall_time},
                               {4, StopReason::signal},
                               {8, StopReason::budget},
                               {16, StopReason::stop_file}})
      if (set & bit) strongest = reason;
    EXPECT_EQ(next({0, 0, set & 8 ? 6.0 : 1.0}), strongest);
  }
}

TEST_F(StopsTest, BudgetIsSpent) {
  options.core_hours = 5;
  begin();
  EXPECT_EQ(next({0, 0, 4.999}), StopReason::none);
  EXPECT_EQ(next({0, 0, 5}), StopReason::budget);
  EXPECT_EQ(stops->text(), "budget: 5.0000 of 5 core hours are spent (limits.core_hours)");
}

TEST_F(StopsTest, StopFile) {
  begin();
  EXPECT_EQ(next(), StopReason::none);
  file("stop");
  EXPECT_EQ(next(), StopReason::stop_file);
  EXPECT_EQ(stops->text(), "file " + folder + "/stop");
  for (StopReason other : {StopReason::none, StopReason::save_file, StopReason::wall_time,
                           StopReason::signal, StopReason::budget}) {
    stops->done(other);
    EXPECT_TRUE(there("stop"));
  }
  stops->done(StopReason::stop_file);
  EXPECT_FALSE(there("stop"));
}

TEST_F(StopsTest, FilesAreLookedAtOnceASecond) {
  begin();
  next();
  file("stop");
  now += 0.5;
  EXPECT_EQ(stops->agree({}), StopReason::none);
  now += 0.6;
  EXPECT_EQ(stops->agree({}), StopReason::stop_file);
}

// A stop file that is older than the start waits until the first step. A newer one does not.
TEST_F(StopsTest, OldStopFileWaitsForTheStart) {
  file("stop");
  stops = std::make_unique<Stops>(world, options, folder, kBegin_s, outside());
  EXPECT_EQ(next(), StopReason::none);
  stops->started(0);
  EXPECT_EQ(next(), StopReason::stop_file);
  std::filesystem::remove(folder + "/stop");
  stops = std::make_unique<Stops>(world, options, folder, kBegin_s, outside());
  file("stop");
  EXPECT_EQ(next(), StopReason::stop_file);
}

// checkpoint.every_s counts from the begin of the last save. A stronger reason precedes it.
TEST_F(StopsTest, SavesByTime) {
  begin();
  stops->started(900);
  now += 899;
  EXPECT_EQ(stops->agree({}), StopReason::none);
  now += 1;
  EXPECT_EQ(stops->agree({}), StopReason::save_time);
  stops->save_begins();
  EXPECT_EQ(next(), StopReason::none);
  now += 898;
  EXPECT_EQ(stops->agree({}), StopReason::save_time);
  file("save");
  EXPECT_EQ(next(), StopReason::save_file);
  stops->save_begins();
  stops->save_committed();
  EXPECT_EQ(next(), StopReason::none);
}

TEST_F(StopsTest, SaveFileIsFulfilledByACommit) {
  begin();
  file("save");
  EXPECT_EQ(next(), StopReason::save_file);
  stops->save_begins();
  EXPECT_EQ(next(), StopReason::none) << "the running save fulfils the request";
  EXPECT_TRUE(there("save"));
  stops->save_committed();
  EXPECT_FALSE(there("save"));
  EXPECT_EQ(next(), StopReason::none);
  file("save");
  EXPECT_EQ(next(), StopReason::save_file) << "a new request";
}

// A save does not fulfil a request that comes while it runs.
TEST_F(StopsTest, SaveFileThatComesDuringASave) {
  begin();
  stops->save_begins();
  file("save");
  EXPECT_EQ(next(), StopReason::save_file);
  stops->save_committed();
  EXPECT_TRUE(there("save"));
  stops->save_begins();
  stops->save_committed();
  EXPECT_FALSE(there("save"));
}

// A failed save is not repeated at every step. The next successful save fulfils the request.
TEST_F(StopsTest, SaveThatFailed) {
  begin();
  file("save");
  ASSERT_EQ(next(), StopReason::save_file);
  stops->save_begins();
  EXPECT_EQ(next(), StopReason::none);
  EXPECT_EQ(next(), StopReason::none);
  stops->save_begins();
  stops->save_committed();
  EXPECT_FALSE(there("save"));
}

TEST_F(StopsTest, OneRankIsEnough) {
  begin();
  world.other = StopReason::signal;
  world.other_text = "signal TERM at rank 1";
  EXPECT_EQ(next(), StopReason::signal);
  EXPECT_EQ(stops->text(), "signal TERM at rank 1");
}

TEST_F(StopsTest, RanksThatCallDifferentExchangesEndTogether) {
  begin();
  world.alike = false;
  world.other_text = "n1\ntrain\n3\n1 all_reduce of fsdp";
  try {
    next();
    FAIL() << "it went on";
  } catch (const base::Error& e) {
    EXPECT_TRUE(e.agreed());
    EXPECT_NE(std::string(e.what()).find("different exchanges"), std::string::npos) << e.what();
  }
}

// Ranks other than 0 receive signals, and leave files, clock and budget to rank 0.
TEST_F(StopsTest, OtherRanksOnlyHearSignals) {
  Pair second(1);
  options.wall_time = "00:00:10";
  options.core_hours = 1;
  file("stop");
  Stops other(second, options, folder, kBegin_s, outside());
  other.started(0);
  now += 1000;
  EXPECT_EQ(other.agree({1e6, 1e6, 1e6}), StopReason::none);
  other.done(StopReason::signal);
  options.signals = {"USR2"};
  raise_usr2();
  EXPECT_EQ(other.agree({}), StopReason::signal);
  EXPECT_EQ(other.text(), "signal USR2 at rank 1");
  EXPECT_EQ(other.way_out({}), "");
  other.done(StopReason::stop_file);
  EXPECT_TRUE(there("stop")) << "rank 0 removes it";
}

TEST_F(StopsTest, SignalsOfTheDeckOnly) {
  raise_usr2();
  options.signals = {"USR1"};
  begin();
  EXPECT_EQ(next(), StopReason::none);
}

// Signals of an earlier call that are not among the new ones get their default action.
TEST(StopsSignals, CaughtOrNot) {
  auto is_caught = [](int number) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
  };
  catch_stop_signals({"USR1", "USR2"});
  EXPECT_TRUE(is_caught(SIGUSR1) && is_caught(SIGUSR2) && !is_caught(SIGINT));
  std::signal(SIGHUP, SIG_IGN);  // as nohup does
  catch_stop_signals({"USR2"});
  EXPECT_TRUE(!is_caught(SIGUSR1) && is_caught(SIGUSR2));
  struct sigaction hup {};
  sigaction(SIGHUP, nullptr, &hup);
  EXPECT_EQ(hup.sa_handler, SIG_IGN);
  std::signal(SIGHUP, SIG_DFL);
}

}  // namespace
}  // namespace job
