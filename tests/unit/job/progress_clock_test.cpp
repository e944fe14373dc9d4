// SPDX-License-Identifier: Apache-2.0
// Tests when a process without progress counts as hung.
#include "job/progress_clock.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "base/span.hpp"
#include "base/thread_scope.hpp"

namespace {

// Returns after how many seconds without progress in `phase` the process counts as hung, or 0 if
// that takes more than `most` seconds. `others(s)` returns the work of the other ranks after s
// seconds.
int seconds_to_hang(
    job::ProgressClock& clock, uint64_t begun, const char* phase, int most,
    const std::function<uint64_t(int)>& others = [](int) { return 7; }) {
  for (int s = 0; s <= most; ++s)
    if (clock.tick(begun, phase, 1, [&] { return others(s); })) return s;
  return 0;
}

TEST(ProgressClock, SpansAndBytesAreWorkAndWaitsAreNone) {
  base::register_main_thread();
  const uint64_t before = job::work_so_far();
  { base::Span wait("wait", base::SpanKind::wait); }
  EXPECT_EQ(job::work_so_far(), before);
  { base::Span span("work"); }
  EXPECT_EQ(job::work_so_far(), before + 1);
  if (!std::ifstream("/proc/self/io")) GTEST_SKIP() << "no /proc/self/io";
  std::string bytes(size_t{5} << 20, 'x');
  std::ofstream("/dev/null") << bytes << std::flush;
  EXPECT_GE(job::work_so_far(), before + 5);
}

TEST(ProgressClock, HangsAfterItsLimitAndAgainAfterAnother) {
  job::ProgressClock clock(10);
  EXPECT_EQ(seconds_to_hang(clock, 1, "train", 100), 11);
  EXPECT_EQ(clock.idle_s(), 11);
  EXPECT_EQ(seconds_to_hang(clock, 1, "train", 100), 10);
}

TEST(ProgressClock, ProgressStartsItAnew) {
  job::ProgressClock clock(10);
  for (uint64_t begun = 1; begun < 9; ++begun)
    EXPECT_EQ(seconds_to_hang(clock, begun, "train", 9), 0);
  EXPECT_EQ(seconds_to_hang(clock, 9, "save", 9), 0) << "another phase is progress";
  EXPECT_EQ(seconds_to_hang(clock, 9, "train", 9), 0);
}

TEST(ProgressClock, APhaseThatOnceStoodStillForLongGetsMoreTime) {
  job::ProgressClock clock(10);
  EXPECT_EQ(seconds_to_hang(clock, 1, "evaluate", 8), 0);
  EXPECT_EQ(seconds_to_hang(clock, 2, "evaluate", 100), 33) << "4 x 8 s";
  EXPECT_EQ(seconds_to_hang(clock, 3, "train", 100), 11) << "other phases keep theirs";
}

TEST(ProgressClock, ARankThatWaitsForOneThatWorksDoesNotHang) {
  job::ProgressClock clock(10);
  EXPECT_EQ(seconds_to_hang(clock, 1, "start", 100, [](int s) { return uint64_t(s); }), 0);
  // The other rank stops after 28 s. Until then its progress counts for the job.
  const int hangs =
      seconds_to_hang(clock, 2, "start", 100, [](int s) { return uint64_t(std::min(s, 28)); });
  EXPECT_GE(hangs, 28 + 9);
  EXPECT_LE(hangs, 28 + 13);
}

TEST(ProgressClock, ARankThatWaitsGivesTheOthersNearlyTheWholeLimit) {
  for (int start = 0; start < 8; ++start) {
    job::ProgressClock clock(10);
    const auto others = [&](int s) { return uint64_t((s + start) / 8); };
    EXPECT_EQ(seconds_to_hang(clock, 1, "evaluate", 100, others), 0) << start;
  }
}

TEST(ProgressClock, TheOtherRanksAreReadSeldom) {
  job::ProgressClock clock(600);
  int reads = 0;
  const auto count = [&](int) {
    ++reads;
    return uint64_t{7};
  };
  EXPECT_EQ(seconds_to_hang(clock, 1, "train", 70, count), 0);
  EXPECT_EQ(reads, 0);
  EXPECT_GT(seconds_to_hang(clock, 1, "train", 600, count), 0);
  EXPECT_LE(reads, 10);
}

}  // namespace
