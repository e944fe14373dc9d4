// SPDX-License-Identifier: Apache-2.0
// Tests the queue of hooks: their order, events that come faster than their hooks end, and the last
// words of a job. tests/run/hooks_test.py has jobs.
#include "job/hooks.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "io/files.hpp"

namespace job {
namespace {

namespace fs = std::filesystem;

// A run directory. Hooks append their input to the file "told". The hook of the start waits for the
// file "gate".
struct HooksTest : testing::Test {
  const std::string run =
      (fs::temp_directory_path() / fmt::format("hooks_{}", ::getpid())).string();
  const std::string told = run + "/told";
  HookOptions options;
  std::unique_ptr<comm::Comm> world = comm::make_plan_comm(1);

  HooksTest() {
    fs::remove_all(run);
    fs::create_directories(run);
    for (const HookEvent what : {HookEvent::start, HookEvent::step, HookEvent::evaluation,
                                 HookEvent::error, HookEvent::end})
      options.commands[what] = "cat >> " + told;
    options.commands[HookEvent::start] += "; while [ ! -e " + run + "/gate ]; do sleep 0.01; done";
  }
  ~HooksTest() override { fs::remove_all(run); }
  void open_gate() const { std::ofstream(run + "/gate") << "open"; }
  static HookFacts at(int64_t step) { return {{"step", step}}; }

  std::vector<nlohmann::json> events() const {
    std::vector<nlohmann::json> out;
    std::ifstream file(told);
    for (std::string line; std::getline(file, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
  // "start 0, step 3, ..."
  std::string order() const {
    std::string text;
    for (const auto& e : events())
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", e["event"].get<std::string>(),
                          e["step"].get<int64_t>());
    return text;
  }
};

TEST_F(HooksTest, RunInOrderAndOnlyTheNewestOfStepsInARowWaits) {
  Hooks hooks(options, "name", 0);
  hooks.tell(HookEvent::start, at(0));  // there is no run directory yet
  Hooks::use(run);
  hooks.know({{"total", int64_t{9}}});
  hooks.tell(HookEvent::start, at(0));
  for (int64_t step = 1; step <= 3; ++step) hooks.tell(HookEvent::step, at(step));
  hooks.tell(HookEvent::evaluation, at(3));
  hooks.tell(HookEvent::checkpoint, at(3));  // has no command
  hooks.tell(HookEvent::step, at(4));
  open_gate();
  hooks.end(*world, base::Exit::requeue, "a reason", at(4));
  EXPECT_EQ(order(), "start 0, step 3, evaluation 3, step 4, end 4");
  EXPECT_EQ(events()[1]["left_out"], 2);
  EXPECT_EQ(events()[3]["left_out"], 0);
  const auto end = events()[4];
  EXPECT_EQ(end, (nlohmann::json{{"event", "end"},
                                 {"run", run},
                                 {"name", "name"},
                                 {"total", 9},
                                 {"step", 4},
                                 {"exit", 75},
                                 {"reason", "a reason"}}));
  EXPECT_EQ(hooks.wants_stop(), "");
}

TEST_F(HooksTest, ALimitedNumberWaits) {
  Hooks hooks(options, "name", 0);
  Hooks::use(run);
  hooks.tell(HookEvent::start, at(0));
  for (int64_t step = 1; step <= 150; ++step) hooks.tell(HookEvent::evaluation, at(step));
  open_gate();
  hooks.end(*world, base::Exit::finished, "finished", at(150));
  const auto all = events();
  ASSERT_GE(all.size(), 101u);  // one more if the first one had begun when the others came
  EXPECT_LE(all.size(), 102u);
  EXPECT_EQ(all.back()["event"], "end");
}

TEST_F(HooksTest, AtTheEndThoseThatWaitGetTheirTimeTogether) {
  options.timeout_s = 0.3;
  options.stops_on_failure = true;
  Hooks hooks(options, "name", 0);
  Hooks::use(run);
  hooks.tell(HookEvent::start, at(0));  // its gate stays closed
  hooks.tell(HookEvent::evaluation, at(1));
  const base::Stopwatch watch;
  hooks.end(*world, base::Exit::finished, "finished", at(1));
  EXPECT_LT(watch.seconds(), 60);
  EXPECT_EQ(order().substr(0, 7), "start 0");
  EXPECT_EQ(order().substr(order().size() - 5), "end 1");
  EXPECT_NE(hooks.wants_stop().find("hook start step=0: no end within 0.3 s"), std::string::npos)
      << hooks.wants_stop();
}

TEST_F(HooksTest, LastWordsOfAnError) {
  options.timeout_s = 1000;
  Hooks hooks(options, "name", 2);  // other ranks call it a hang after 2 s
  Hooks::use(run);
  hooks.tell(HookEvent::start, at(0));  // its gate stays closed, and the job does not wait for it
  hooks.tell(HookEvent::evaluation, at(1));
  EXPECT_GT(Hooks::most_after_error_s(), 1.5);
  const base::Stopwatch watch;
  Hooks::after_error(true, 4, "loss=-nan");
  EXPECT_LT(watch.seconds(), 60);
  const auto all = events();
  ASSERT_EQ(all.size(), 3u) << order();
  EXPECT_EQ(all[1]["event"], "error");
  EXPECT_EQ(all[2]["event"], "end");
  EXPECT_EQ(all[2]["reason"], "loss=nan");
  EXPECT_EQ(all[2]["exit"], 4);
}

TEST_F(HooksTest, WhoIsNotTheFirstRunsNone) {
  options.timeout_s = 0.1;
  Hooks hooks(options, "name", 0);
  Hooks::before_first_step(75, "no directory yet");
  Hooks::use(run);
  const base::Stopwatch watch;
  Hooks::after_error(false, 4, "too late");
  EXPECT_GE(watch.seconds(), 0.3);  // the first one ends the job meanwhile
  EXPECT_EQ(order(), "");
  Hooks::before_first_step(75, "asked");
  EXPECT_EQ(order(), "end 0");
}

TEST(NoHooks, NothingIsTold) {
  EXPECT_EQ(Hooks::current(), nullptr);
  EXPECT_EQ(Hooks::most_after_error_s(), 0);
  Hooks::after_error(true, 1, "");
  Hooks hooks({}, "name", 0);
  Hooks::use("/nowhere");
  EXPECT_EQ(Hooks::most_after_error_s(), 0);
  Hooks::after_error(true, 1, "");
}

}  // namespace
}  // namespace job
