// SPDX-License-Identifier: Apache-2.0
// Tests the time lost to the machine, on files as Linux writes them and on this machine.
#include "host/lost_time.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "base/text.hpp"
#include "io/files.hpp"

namespace host {
namespace {

class LostTimeFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "trainer_lost_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { io::remove_tree(folder_); }
  void write(const std::string& name, const std::string& text) {
    io::make_directories(io::parent_of(folder_ + "/" + name));
    io::write_file_atomically(folder_ + "/" + name, text, false);
  }
  void write_delay(double seconds) {
    write(fmt::format("proc/self/task/{}/schedstat", ::syscall(SYS_gettid)),
          fmt::format("123 {:.0f} 7\n", seconds * 1e9));
  }
  // Every CPU has lost this time to other guests.
  void write_steal(double seconds) {
    std::string text = "cpu  1 1 1 1 1 1 1 99999999 0 0\n";
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      text += fmt::format("cpu{} 1 2 3 4 5 6 7 {:.0f} 0 0\n", cpu,
                          seconds * double(sysconf(_SC_CLK_TCK)));
    write("proc/stat", text + "intr 12345 0 0 0 0 0 0 0 0 0\n");
  }
  LostTime open() { return LostTime(1, folder_ + "/proc", folder_ + "/cgroups"); }
  std::string folder_;
};

TEST_F(LostTimeFiles, StolenTimeIsDelayAndSteal) {
  write_delay(10);
  write_steal(100);
  LostTime lost = open();
  EXPECT_NEAR(lost.since_last().stolen, 0, 1e-9);
  write_delay(11.5);
  write_steal(100.25);
  EXPECT_NEAR(lost.since_last().stolen, 1.75, 1e-6);
  EXPECT_NEAR(lost.since_last().stolen, 0, 1e-9) << "it counts once";
}

TEST_F(LostTimeFiles, MemoryOfTheGroupBeforeThatOfTheNode) {
  write("proc/pressure/memory",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 total=77\n");
  LostTime node = open();
  write("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\n");
  EXPECT_NEAR(node.since_last().memory, 2, 1e-6);
  write("proc/self/cgroup", "1:name=old:/else\n0::/job/step\n");
  write("cgroups/job/step/memory.pressure", "some avg10=0.00 avg60=0.00 total=5000000\n");
  LostTime group = open();
  write("cgroups/job/step/memory.pressure", "some avg10=0.00 avg60=0.00 total=5500000\n");
  EXPECT_NEAR(group.since_last().memory, 0.5, 1e-6);
}

TEST_F(LostTimeFiles, WhatTheSystemDoesNotTellIsZero) {
  LostTime lost = open();
  const LostTime::Seconds seconds = lost.since_last();
  EXPECT_EQ(seconds.stolen, 0);
  EXPECT_GE(seconds.memory, 0);
  EXPECT_LT(seconds.memory, 1);
}

// Reads the files of this system; little time passes between the two readings.
TEST(LostTime, OfThisMachine) {
  if (::access(fmt::format("/proc/self/task/{}/schedstat", ::syscall(SYS_gettid)).c_str(), R_OK))
    GTEST_SKIP() << "needs the schedstat of threads, which is not here";
  LostTime lost(2);
  const LostTime::Seconds seconds = lost.since_last();
  EXPECT_GE(seconds.stolen, 0);
  EXPECT_LT(seconds.stolen, 60);
  EXPECT_GE(seconds.memory, 0);
}

}  // namespace
}  // namespace host
