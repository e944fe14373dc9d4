// SPDX-License-Identifier: Apache-2.0
// Asks the scheduler how much time this job has left. A thread of its own asks again and again:
// squeue and qstat may take long or never answer, and limits change while jobs run.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.hpp"

namespace job {

// Returns the seconds of a time as SLURM and PBS write it: "23:30:00", "1-12:00:00" or "90:00"
// (minutes and seconds). Returns -1 for any other text.
double seconds_of(const std::string& text);

// Answers of a scheduler. Tests have their own.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  struct Answer {
    int64_t number = 0;  // answers so far; 0 = none yet
    double end_s = 0;    // end of the job, on base::now_s(); 0: not known
    // the whole time that the job was granted; 0: not known
    double limit_s = 0;
    std::string source;   // "slurm", "pbs"; "": no scheduler runs this job
    bool in_time = true;  // false: the scheduler did not answer in time
  };
  virtual Answer latest() const = 0;
  // Returns the newest answer once there is one, or after this many seconds.
  virtual Answer first(double seconds) const = 0;
};

// Finds out when a PBS job ends. PBS refreshes resources_used.walltime only every 10 to 120 s, so
// "limit - used" jumps back at each look. The job's start does not move: it is the earliest start
// that any answer implies. The end is start + limit.
class PbsEnd {
 public:
  // `now_s` is the latest time at which the job can have started.
  explicit PbsEnd(double now_s) : begin_s_(now_s) {}
  // Reads the output of qstat -f. `now_s` is base::now_s(), and `unix_s` is the same moment in
  // seconds since 1970.
  Scheduler::Answer read(const std::string& output, double now_s, double unix_s);

 private:
  double begin_s_;
};

// Asks SLURM or PBS, whichever started this job.
class JobTime : public Scheduler {
 public:
  // Asks for the first time. A query without answer after `patience_s` is killed and counts as no
  // answer.
  explicit JobTime(double patience_s = 30);
  ~JobTime() override;  // does not wait for a pending answer

  Answer latest() const override;
  Answer first(double seconds) const override;

 private:
  void work();
  Answer ask(bool again);
  std::string output_of(const std::string& command);
  bool quits() const;

  const double patience_s_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Answer answer_;
  bool quit_ = false, in_time_ = true;
  PbsEnd pbs_end_{base::now_s()};
  std::thread thread_;
};

}  // namespace job
