// SPDX-License-Identifier: Apache-2.0
// Tests the numbers that --mode bench forms from the times of its steps.
#include "modes/bench_steps.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace modes {
namespace {

std::vector<double> up_to(int count) {
  std::vector<double> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 1.0);
  return out;
}

TEST(BenchSteps, NinetyNineOfAHundredLieBelow) {
  EXPECT_EQ(p99_of(up_to(1)), 1);
  EXPECT_EQ(p99_of(up_to(2)), 2);
  EXPECT_EQ(p99_of(up_to(50)), 50) << "of few values the largest";
  EXPECT_EQ(p99_of(up_to(100)), 100);
  EXPECT_EQ(p99_of(up_to(1000)), 991);
}

TEST(BenchSteps, MeanAndMedian) {
  StepTimes times;
  times.all = {1, 2, 9};
  EXPECT_EQ(times.mean(), 4);
  EXPECT_EQ(times.median(), 2);
  times.all = {1, 2, 4, 9};
  EXPECT_EQ(times.mean(), 4);
  EXPECT_EQ(times.median(), 3);
}

}  // namespace
}  // namespace modes
