// SPDX-License-Identifier: Apache-2.0
#include "train/phases.hpp"

#include <gtest/gtest.h>

namespace train {
namespace {

TEST(Phases, AreThePublishedLists) {
  EXPECT_EQ(phase_list(5, 2), "TeTTeTTe");
  EXPECT_EQ(phase_list(6, 3), "TeTTTeTTe");
  EXPECT_EQ(phase_list(3, 10), "TeTTe");
  EXPECT_EQ(phase_list(3, 1), "TeTeTe");
  EXPECT_EQ(phase_list(1, 1), "Te");
  EXPECT_EQ(phase_list(101, 200).substr(0, 4), "TeTT");
  EXPECT_TRUE(phase_list(101, 200).ends_with("T..."));
}

// The numbers of phases are their places in the list.
TEST(Phases, AreCounted) {
  for (int64_t every : {1, 2, 3, 10})
    for (int64_t epochs : {1, 2, 5, 6, 20}) {
      const std::string list = phase_list(epochs, every);
      int64_t epoch = -1;
      for (int64_t phase = 0; phase < int64_t(list.size()); ++phase)
        if (list[size_t(phase)] == 'T') {
          EXPECT_EQ(phase_of_epoch(++epoch, every), phase);
          const bool last = epoch + 1 == epochs, tested = list[size_t(phase) + 1] == 'e';
          EXPECT_EQ(tested_within(epoch, epoch + 1, every) || last, tested) << epoch;
        } else {
          EXPECT_EQ(phase_of_test(epoch + 1, every), phase);
        }
    }
  EXPECT_FALSE(tested_within(1, 1, 1)) << "no epoch has ended";
  EXPECT_TRUE(tested_within(1, 4, 3)) << "a step may end several epochs";
}

}  // namespace
}  // namespace train
