// SPDX-License-Identifier: Apache-2.0
// Tests commands that behave and commands that do not, and the facts that hooks get.
#include "job/command.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/clock.hpp"
#include "job/hook_facts.hpp"

namespace job {
namespace {

using How = CommandEnd::How;

struct Ran {
  CommandEnd end;
  std::string output;
};

Ran ran(
    const Command& command, const std::function<bool()>& quits = [] { return false; }) {
  Ran r;
  r.end = run_command(
      command, [&r](std::string_view piece) { r.output += piece; }, quits);
  return r;
}

bool is_there(pid_t process) { return ::kill(process, 0) == 0; }

// Waits until a process that this one need not reap is gone.
void expect_gone(pid_t process) {
  for (const base::Stopwatch watch; is_there(process) && watch.seconds() < 60;)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(is_there(process));
}

TEST(Command, GetsInputAndEnvironmentAndGivesOutput) {
  const std::string long_input(300000, 'x');
  Ran r = ran({.text = "echo $A; cat; echo bad >&2; exit 3",
               .environment = {"A=1 2"},
               .input = long_input});
  EXPECT_EQ(r.output, "1 2\n" + long_input + "bad\n");
  EXPECT_EQ(r.end.text(), "exit 3");
  EXPECT_FALSE(r.end.good());
  EXPECT_EQ(ran({.text = "cat"}).output, "");
  EXPECT_TRUE(ran({.text = "true"}).end.good());
  EXPECT_EQ(ran({.text = "kill -9 $$"}).end.text(), "signal 9 (Killed)");
}

TEST(Command, SignalsAreClean) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto ignored = ::signal(SIGUSR2, SIG_IGN);
  // The C library of Debian 12 ignores two signals of its own, 32 and 33, in what it starts.
  const Ran r = ran({.text = "grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f 2 | cut -c 9-"});
  ::signal(SIGUSR2, ignored);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_TRUE(r.output == "00000000\n80000000\n" || r.output == "00000000\n00000000\n") << r.output;
}

TEST(Command, TermAtTheLimitThenKill) {
  Ran r = ran({.text = "trap 'echo asked; exit 0' TERM; while :; do sleep 0.01; done",
               .limit_s = 0.2,
               .grace_s = 60});
  EXPECT_EQ(r.end.how, How::late);
  EXPECT_TRUE(r.output.ends_with("asked\n")) << r.output;
  EXPECT_LT(r.end.seconds, 30);
  r = ran({.text = "trap '' TERM; while :; do sleep 0.01; done", .limit_s = 0.2, .grace_s = 0.1});
  EXPECT_EQ(r.end.text(), "no end within 0.2 s: it was killed");
}

TEST(Command, LeavesNothingBehind) {
  Ran r = ran({.text = "sleep 1000 & echo $!"});
  EXPECT_TRUE(r.end.good());
  expect_gone(pid_t(std::stol(r.output)));
  r = ran({.text = "sleep 1000 & echo $!; wait", .limit_s = 0.2});
  expect_gone(pid_t(std::stol(r.output)));
}

TEST(Command, EndsWhenItsCallerQuits) {
  bool quit = false;
  const Ran r = ran({.text = "trap '' TERM; sleep 1000", .grace_s = 1000},
                    [&quit] { return std::exchange(quit, true); });
  EXPECT_EQ(r.end.how, How::quit);
}

TEST(Command, FloodsAreReadSlowly) {
  const Ran r = ran({.text = "yes", .limit_s = 1});
  EXPECT_EQ(r.end.how, How::late);
  EXPECT_GT(r.output.size(), 1 << 20);
  EXPECT_LT(r.output.size(), 10 << 20);
}

TEST(CommandGuard, EndsTheCommandOfAProcessThatIsKilled) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    CommandGuard guard;
    run_command(
        {.text = "trap '' TERM; echo $$; while :; do sleep 0.01; done", .limit_s = 1000},
        [&](std::string_view piece) { (void)!::write(ends[1], piece.data(), piece.size()); },
        [] { return false; }, &guard);
    ::_exit(0);
  }
  char text[32] = "";
  ASSERT_GT(::read(ends[0], text, sizeof text - 1), 0);
  const pid_t hook = pid_t(std::strtol(text, nullptr, 10));
  EXPECT_TRUE(is_there(hook));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  expect_gone(hook);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(HookFacts, InBothForms) {
  const HookFacts facts = {{"event", "end"},
                           {"step", int64_t{12}},
                           {"loss", 0.1},
                           {"reason", "a \"b\"\nc"},
                           {"values", HookFact::Values{{"top1", 0.5}, {"bad", NAN}}}};
  EXPECT_EQ(json_of(facts), R"({"event":"end","step":12,"loss":0.1,"reason":"a \"b\"\nc",)"
                            R"("values":{"top1":0.5,"bad":null}})");
  EXPECT_EQ(environment_of(facts, {"PATH=/bin", "TRAINER_FILE=old", "TRAINER_MPI_START_S=5"}),
            (std::vector<std::string>{"PATH=/bin", "TRAINER_MPI_START_S=5", "TRAINER_EVENT=end",
                                      "TRAINER_STEP=12", "TRAINER_LOSS=0.1",
                                      "TRAINER_REASON=a \"b\"\nc"}));
}

}  // namespace
}  // namespace job
