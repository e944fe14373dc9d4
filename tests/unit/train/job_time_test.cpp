// What the scheduler says of the remaining time: asked in a thread, of commands that may hang.
#include "train/job_time.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/clock.hpp"

namespace train {
namespace {

TEST(JobTimeText, AsSlurmAndPbsWriteIt) {
  EXPECT_EQ(seconds_of("23:30:00"), 84600);
  EXPECT_EQ(seconds_of("1-12:00:05"), 129605);
  EXPECT_EQ(seconds_of("90:00"), 5400);
  for (const char* none : {"", "UNLIMITED", "INVALID", "90", "-1:00", "1:2:3:4", "1:x"}) EXPECT_EQ(seconds_of(none), -1) << none;
}

// A folder with commands of ours, first in PATH, and a job of a scheduler in the environment.
struct JobTimeTest : testing::Test {
  std::string folder = "/tmp/job_time_test_XXXXXX", path = ::getenv("PATH");
  JobTimeTest() {
    if (!::mkdtemp(folder.data())) std::abort();
    ::setenv("PATH", (folder + ":" + path).c_str(), 1);
    for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_END_TIME", "SLURM_ARRAY_JOB_ID", "PBS_JOBID"}) ::unsetenv(name);
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
  static double left(const JobTime::Answer& a) { return a.end_s - base::now_s(); }
};

TEST_F(JobTimeTest, NoScheduler) {
  JobTime time;
  EXPECT_EQ(time.first(5).number, 1);
  EXPECT_EQ(time.latest().source, "");
  EXPECT_EQ(time.latest().end_s, 0);
}

TEST_F(JobTimeTest, LimitsThatAreChanged) {
  ::setenv("SLURM_JOB_ID", "12", 1);
  command("squeue", "[ \"$*\" = '-h -j 12 -o %L' ] && if [ -e " + folder + "/longer ]; then echo 2:00:00; else echo 0:40; fi");
  JobTime time;
  EXPECT_EQ(time.first(10).source, "slurm");
  EXPECT_NEAR(left(time.latest()), 40, 5);
  std::ofstream(folder + "/longer") << "";
  for (base::Stopwatch w; time.latest().number < 2 && w.seconds() < 20;) ::usleep(50'000);
  EXPECT_NEAR(left(time.latest()), 7200, 5);
}

TEST_F(JobTimeTest, TheEnvironmentTellsFirst) {
  ::setenv("SLURM_JOB_ID", "12", 1);
  ::setenv("SLURM_JOB_END_TIME", std::to_string(::time(nullptr) + 500).c_str(), 1);
  command("squeue", "echo 9:59:59");
  JobTime time;
  EXPECT_NEAR(left(time.first(5)), 500, 3);
}

TEST_F(JobTimeTest, Pbs) {
  ::setenv("PBS_JOBID", "7[1].server", 1);
  command("qstat", "printf 'Job Id: 7\\n    Resource_List.walltime = 01:00:00\\n    resources_used.walltime = 00:10:00\\n'");
  JobTime time;
  EXPECT_NEAR(left(time.first(10)), 3000, 5);
  EXPECT_EQ(time.latest().source, "pbs");
}

TEST_F(JobTimeTest, ACommandThatHangsHoldsNobody) {
  ::setenv("SLURM_JOB_ID", "12", 1);
  command("squeue", "sleep 1000 & echo $! > " + folder + "/pid; wait");
  {
    JobTime patient(0.5);
    base::Stopwatch watch;
    EXPECT_EQ(patient.latest().number, 0);
    EXPECT_LT(watch.seconds(), 0.3);
    JobTime::Answer answer = patient.first(10);
    EXPECT_EQ(answer.number, 1);
    EXPECT_FALSE(answer.in_time);
    EXPECT_EQ(answer.end_s, 0);
  }
  int sleeper = 0;
  std::ifstream(folder + "/pid") >> sleeper;
  ASSERT_GT(sleeper, 0);
  ::usleep(200'000);
  EXPECT_FALSE(std::filesystem::exists("/proc/" + std::to_string(sleeper) + "/exe")) << "killed with its children";
  // One whose run ends while squeue hangs.
  base::Stopwatch watch;
  { JobTime waiting(1000); ::usleep(100'000); }
  EXPECT_LT(watch.seconds(), 2);
}

}  // namespace
}  // namespace train
