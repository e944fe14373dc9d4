// SPDX-License-Identifier: Apache-2.0
// Tests the estimates of the time that a stop needs.
#include "train/outlook.hpp"

#include <gtest/gtest.h>

#include "train/progress.hpp"

namespace train {
namespace {

TEST(Outlook, QueuedStepsCount) {
  EXPECT_EQ(steps_outlook_s(3, 0), 3) << "the step that is about to begin";
  EXPECT_EQ(steps_outlook_s(3, 1), 6) << "and one that a GPU still runs";
  EXPECT_EQ(steps_outlook_s(0, 1), 0) << "no step was measured";
}

TEST(Outlook, ASaveTakesAsLongAsTheLastOne) {
  EXPECT_EQ(saves_outlook_s(7, 1e12, false), 7);
  EXPECT_EQ(saves_outlook_s(7, 1e12, true), 14) << "the pending save comes first";
}

TEST(Outlook, BeforeTheFirstSaveTheDiskIsAssumed) {
  EXPECT_DOUBLE_EQ(saves_outlook_s(0, 2e9, false), 20.5);
  EXPECT_DOUBLE_EQ(saves_outlook_s(0, 2e9, true), 41);
  EXPECT_DOUBLE_EQ(saves_outlook_s(0, 0, false), 0.5);
}

TEST(Outlook, TheStepTimeIsTheLastOneOrTheMeanIfThatIsLonger) {
  Pace pace;
  for (double seconds : {9.0, 9.0, 1.0, 1.0}) pace.step_done(seconds, 1);
  EXPECT_EQ(pace.slowest_step_s(), 1) << "the first two steps do not count";
  pace.step_done(4, 1);
  EXPECT_EQ(pace.slowest_step_s(), 4) << "a slow step may come again";
  pace.step_done(1, 1);
  EXPECT_EQ(pace.slowest_step_s(), 7.0 / 4) << "the mean";
}

}  // namespace
}  // namespace train
