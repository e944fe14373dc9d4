// SPDX-License-Identifier: Apache-2.0
// Tests medians over the last steps against sorted copies of the values.
#include "train/console_window.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace train {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(ConsoleWindow, OneStepIsTheStepItself) {
  ConsoleWindow window(1);
  for (double loss : {3.0, 1.0, 2.0}) {
    window.add({loss, -loss});
    EXPECT_EQ(window.median(0), loss);
    EXPECT_EQ(window.median(1), -loss);
  }
}

TEST(ConsoleWindow, TheMedianIsOverTheLastSteps) {
  ConsoleWindow window(4);
  const std::vector<double> losses = {5, 1, 4, 9, 2, 100};
  const std::vector<double> medians = {5, 3, 4, 4.5, 3, 6.5};
  for (size_t i = 0; i < losses.size(); ++i) {
    window.add({losses[i]});
    EXPECT_EQ(window.median(0), medians[i]) << i;
  }
}

TEST(ConsoleWindow, ShowsALossThatIsNotFinite) {
  ConsoleWindow window(3);
  window.add({1});
  window.add({kNaN});
  EXPECT_TRUE(std::isnan(window.median(0)));
  window.add({3});
  EXPECT_EQ(window.median(0), 2);
}

}  // namespace
}  // namespace train
