// SPDX-License-Identifier: Apache-2.0
// Tests the memory of this process and when it began.
#include "base/process_memory.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/clock.hpp"
#include "base/process_start.hpp"

namespace base {
namespace {

TEST(ProcessMemory, ReadsTheSystemsText) {
  const ProcessMemory m = process_memory_of(
      "Name:\tVmRSS: 9 kB\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\nRssAnon:\t  110 kB\nRssFile:\t 70 "
      "kB\n"
      "RssShmem:\t20 kB\n");
  EXPECT_EQ(m.peak, 300 << 10);
  EXPECT_EQ(m.resident, 200 << 10);
  EXPECT_EQ(m.anonymous, 110 << 10);
  EXPECT_EQ(m.file, 70 << 10);
  EXPECT_EQ(m.shared, 20 << 10);
  EXPECT_EQ(m.swapped, 0);
}

TEST(ProcessMemory, GrowsWithWhatIsTouched) {
  const ProcessMemory before = process_memory();
  constexpr size_t kBytes = size_t{64} << 20;
  const std::vector<char> touched(kBytes, 'x');
  const ProcessMemory after = process_memory();
  EXPECT_GT(after.anonymous - before.anonymous, int64_t(kBytes) * 9 / 10);
  EXPECT_NEAR(double(resident_bytes()), double(after.resident), double(kBytes) / 4);
  EXPECT_EQ(after.resident, after.anonymous + after.file + after.shared);
  EXPECT_EQ(touched.back(), 'x');
}

TEST(ProcessStart, IsBeforeNow) {
  const double start = process_start_s();
  EXPECT_LT(start, now_s());
  EXPECT_NEAR(process_start_s(), start, 0.02);
  EXPECT_NEAR(unix_s(start) - start, unix_s(now_s()) - now_s(), 0.001);
}

}  // namespace
}  // namespace base
