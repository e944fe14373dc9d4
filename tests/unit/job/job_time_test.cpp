// SPDX-License-Identifier: Apache-2.0
// Tests the scheduler's answers about the remaining time. A thread runs the commands, which may
// hang.
#include "job/job_time.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/clock.hpp"

namespace job {
namespace {

TEST(JobTimeText, AsSlurmAndPbsWriteIt) {
  EXPECT_EQ(seconds_of("23:30:00"), 84600);
  EXPECT_EQ(seconds_of("1-12:00:05"), 129605);
  EXPECT_EQ(seconds_of("90:00"), 5400);
  for (const char* none : {"", "UNLIMITED", "INVALID", "90", "-1:00", "1:2:3:4", "1:x"})
    EXPECT_EQ(seconds_of(none), -1) << none;
}

// Makes a folder with imitated commands, first in PATH, and a scheduler's job in the environment.
struct JobTimeTest : testing::Test {
  std::string folder = "/tmp/job_time_test_XXXXXX", path = ::getenv("PATH");
  JobTimeTest() {
    if (!::mkdtemp(folder.data())) std::abort();
    ::setenv("PATH", (folder + ":" + path).c_str(), 1);
    for (const char* name :
         {"SLURM_JOB_ID", "SLURM_JOB_END_TIME", "SLURM_ARRAY_JOB_ID", "PBS_JOBID"})
      ::unsetenv(name);
  }
  ~JobTimeTest() override {
    ::setenv("PATH", path.c_str(), 1);
    for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_END_TIME", "PBS_JOBID"}) ::unsetenv(name);
    std::filesystem::remove_all(folder);
  }
  void command(const std::string& name, const std::string& script) {
    std::ofstream(folder + "/" + name) << "#!/bin/sh\n" << script << "\n";
    ::chmod((folder + "/" + name).c_str(), 0755);
  }
  // Checks an answer, given after `begin_s`, that `left_s` seconds are left.
  static void expect_left(const JobTime::Answer& a, double begin_s, double left_s) {
    EXPECT_GE(a.end_s, begin_s + left_s - 2);  // whole seconds, on another clock
    EXPECT_LE(a.end_s, base::now_s() + left_s + 2);
  }
  static constexpr double kGuard_s = 600;  // only a hung command takes as long
};

TEST_F(JobTimeTest, NoScheduler) {
  JobTime time;
  EXPECT_EQ(time.first(kGuard_s).number, 1);
  EXPECT_EQ(time.latest().source, "");
  EXPECT_EQ(time.latest().end_s, 0);
}

TEST_F(JobTimeTest, LimitsThatAreChanged) {
  ::setenv("SLURM_JOB_ID", "12", 1);
  command("squeue", "[ \"$*\" = '-h -j 12 -o %L' ] && if [ -e " + folder +
                        "/longer ]; then echo 2:00:00; else echo 0:40; fi");
  double begin_s = base::now_s();
  JobTime time;
  EXPECT_EQ(time.first(kGuard_s).source, "slurm");
  expect_left(time.latest(), begin_s, 40);
  begin_s = base::now_s();
  std::ofstream(folder + "/longer") << "";
  while (time.latest().number < 2) ::usleep(20'000);
  expect_left(time.latest(), begin_s, 7200);
}

TEST_F(JobTimeTest, TheEnvironmentTellsFirst) {
  ::setenv("SLURM_JOB_ID", "12", 1);
  ::setenv("SLURM_JOB_END_TIME", std::to_string(::time(nullptr) + 500).c_str(), 1);
  command("squeue", "echo 9:59:59");
  const double begin_s = base::now_s();
  JobTime time;
  expect_left(time.first(kGuard_s), begin_s, 500);
}

TEST_F(JobTimeTest, Pbs) {
  ::setenv("PBS_JOBID", "7[1].server", 1);
  command("qstat",
          "printf 'Job Id: 7\\n    Resource_List.walltime = 01:00:00\\n    resources_used.walltime "
          "= 00:10:00\\n'");
  const double begin_s = base::now_s();
  JobTime time;
  expect_left(time.first(kGuard_s), begin_s, 3000);
  EXPECT_EQ(time.latest().source, "pbs");
}

TEST_F(JobTimeTest, ACommandThatHangsHoldsNobody) {
  ::setenv("SLURM_JOB_ID", "12", 1);
  // The command's child writes to the pipe and holds it while it lives.
  const std::string alive = folder + "/alive";
  ASSERT_EQ(::mkfifo(alive.c_str(), 0600), 0);
  command("squeue", "{ echo; exec sleep 100000; } > " + alive + " & wait");
  const int file = ::open(alive.c_str(), O_RDONLY | O_NONBLOCK);
  char byte = 0;
  bool lived = false;
  for (double patience_s = 0.2; !lived; patience_s *= 2) {  // a busy machine may start it late
    JobTime hasty(patience_s);
    JobTime::Answer answer = hasty.first(kGuard_s);
    EXPECT_EQ(answer.number, 1);
    EXPECT_FALSE(answer.in_time);
    EXPECT_EQ(answer.end_s, 0);
    lived = ::read(file, &byte, 1) == 1;
  }
  // The command was killed with its children, so no process holds the pipe.
  while (::read(file, &byte, 1) != 0) ::usleep(1000);
  {
    JobTime waiting(100000);
    while (::read(file, &byte, 1) != 1) ::usleep(1000);
    // squeue hangs; neither this call nor the destructor waits for it
    EXPECT_EQ(waiting.latest().number, 0);
  }
  while (::read(file, &byte, 1) != 0) ::usleep(1000);
  ::close(file);
}

}  // namespace
}  // namespace job
