// SPDX-License-Identifier: Apache-2.0
// What the scheduler says of the time that this job has left. It is asked again and again, in a
// thread of its own: squeue and qstat may take long or never answer, and limits are changed while
// jobs run.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.hpp"

namespace job {

// "23:30:00", "1-12:00:00", "90:00" (minutes and seconds) in seconds; -1 if it is no such text.
// SLURM's and PBS's forms.
double seconds_of(const std::string& text);

// Answers of a scheduler. Tests give their own.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  struct Answer {
    int64_t number = 0;  // of answers so far, 0 = none yet
    double end_s = 0;    // when the job ends, on base::now_s(); 0: the scheduler does not tell
    // the whole time that the job was granted; 0: the scheduler does not tell
    double limit_s = 0;
    std::string source;   // "slurm", "pbs"; "": this is no job of a scheduler
    bool in_time = true;  // false: it did not answer
  };
  virtual Answer latest() const = 0;
  // Returns the same after the first answer, or after so many seconds.
  virtual Answer first(double seconds) const = 0;
};

// Finds out when a PBS job ends. PBS refreshes resources_used.walltime only every 10 to 120 s, so
// "limit - used" jumps back at each look. The job's start does not: it is the earliest that any
// answer shows, and the end is that and the limit.
class PbsEnd {
 public:
  // The job runs since now_s at the latest.
  explicit PbsEnd(double now_s) : begin_s_(now_s) {}
  // Takes the output of qstat -f. `now_s` is base::now_s(), `unix_s` the same moment in seconds
  // since 1970.
  Scheduler::Answer read(const std::string& output, double now_s, double unix_s);

 private:
  double begin_s_;
};

// Asks SLURM or PBS, whichever started this job.
class JobTime : public Scheduler {
 public:
  // Asks for the first time. What has not answered after `patience_s` is killed and counts as no
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
