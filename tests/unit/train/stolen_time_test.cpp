// CPU time that went to others is told apart from our own.
#include "train/stolen_time.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.hpp"

namespace train {
namespace {

void spin(double seconds) {
  base::Stopwatch watch;
  while (watch.seconds() < seconds) {
  }
}

TEST(StolenTime, AnotherProgramIsCountedWeAreNot) {
  auto world = comm::make_plan_comm(1);  // sums and maxima of one rank
  StolenTime stolen(*world, true);
  // The least of some tries: this machine may be busy with other things too.
  double quiet = 1e9, busy = 0;
  for (int i = 0; i < 5; ++i) {
    stolen.since_last();
    spin(0.2);
    quiet = std::min(quiet, stolen.since_last());
  }
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0)
    for (;;) {
    }
  for (int i = 0; i < 5; ++i) {
    stolen.since_last();
    usleep(300'000);
    busy = std::max(busy, stolen.since_last());
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_GT(busy, 0.1);
  const double cpus = double(sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_LT(quiet, 0.2 * (cpus - 1) + 0.06) << "what we spun ourselves was counted";
}

TEST(StolenTime, MuchIsMoreThanAFewTicks) {
  const double cpus = double(sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_FALSE(StolenTime::is_much(0, 0.001));
  EXPECT_FALSE(StolenTime::is_much(0.01, 0.1));
  EXPECT_TRUE(StolenTime::is_much(0.04 * cpus, 1));
  EXPECT_FALSE(StolenTime::is_much(0.02 * cpus, 1));
}

}  // namespace
}  // namespace train
