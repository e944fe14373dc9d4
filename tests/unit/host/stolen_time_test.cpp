// SPDX-License-Identifier: Apache-2.0
// Distinguishes CPU time of other programs from our own.
#include "host/stolen_time.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/clock.hpp"

namespace host {
namespace {

// One thread per CPU computes for `seconds`.
void spin(double seconds, int64_t cpus) {
  std::vector<std::jthread> threads;
  for (int64_t i = 0; i < cpus; ++i)
    threads.emplace_back([seconds] {
      base::Stopwatch watch;
      while (watch.seconds() < seconds) {
      }
    });
}

TEST(StolenTime, AnotherProgramIsCountedWeAreNot) {
  if (::access("/proc/stat", R_OK) != 0) GTEST_SKIP() << "needs /proc/stat, which is not here";
  auto world = comm::make_plan_comm(1);  // sums and maxima of one rank
  StolenTime stolen(*world, true);
  // Other programs may be busy on this machine, too. Their CPU time is missing in ours. Several
  // tries even out the clock ticks.
  const auto cpus = int64_t(sysconf(_SC_NPROCESSORS_ONLN));
  double counted_of_ours = 1e9, busy = 0;
  for (int i = 0; i < 5; ++i) {
    stolen.since_last();
    base::Stopwatch watch;
    const std::clock_t ours = std::clock();
    spin(0.3, cpus);
    double others = watch.seconds() * double(cpus) - double(std::clock() - ours) / CLOCKS_PER_SEC;
    counted_of_ours = std::min(counted_of_ours, stolen.since_last() - others);
  }
  pid_t child = fork();
  ASSERT_GE(child, 0);
  // The standard lets a compiler leave out an endless loop that changes nothing.
  if (child == 0)
    for (;;) {
      asm volatile("");
    }
  for (int i = 0; i < 5; ++i) {
    stolen.since_last();
    usleep(300'000);
    busy = std::max(busy, stolen.since_last());
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_GT(busy, 0.1);
  EXPECT_LT(counted_of_ours, 0.06) << "of " << 0.3 * double(cpus) << " s of our own computing";
}

TEST(StolenTime, MuchIsMoreThanAFewTicks) {
  const double cpus = double(sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_FALSE(StolenTime::is_much(0, 0.001));
  EXPECT_FALSE(StolenTime::is_much(0.01, 0.1));
  EXPECT_TRUE(StolenTime::is_much(0.04 * cpus, 1));
  EXPECT_FALSE(StolenTime::is_much(0.02 * cpus, 1));
}

}  // namespace
}  // namespace host
