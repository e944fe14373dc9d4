// SPDX-License-Identifier: Apache-2.0
// The time that the deck or the scheduler grants to this job, and the margin kept free at its end.
// Only rank 0 has a TimeLimit.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "job/job_time.hpp"

namespace job {

// The clock and the scheduler of a run. Tests have their own.
struct Outside {
  std::function<double()> now_s = base::now_s;
  std::function<std::unique_ptr<Scheduler>()> ask = [] { return std::make_unique<JobTime>(); };
};

class TimeLimit {
 public:
  // `wall_time` and `margin_s` are limits.wall_time and limits.margin_s of the deck; a wall time of
  // the deck counts from `begin_s`, the start of the program. Asks the scheduler if wall_time is
  // "auto".
  TimeLimit(const std::string& wall_time, double margin_s, double begin_s, Outside outside);

  // Reads the scheduler's answers since the last call and logs a changed limit.
  void update();
  // Returns the reason to stop now: margin, one more step and a save would not fit any more.
  // Returns "" if they fit.
  std::string over(double step_s, double save_s) const;
  // Returns the wall time that a job needs to start, gain a step and save it.
  std::string needed(double step_s, double save_s) const;
  // True if less time is left than has passed since the job began.
  bool is_half_over() const;
  // Returns this limit's part of the console line `limits`. Waits a few seconds for the scheduler's
  // first answer.
  std::string describe();

 private:
  void take(const Scheduler::Answer& answer);
  bool is_changed(const Scheduler::Answer& answer) const;
  void set_end(double end_s);
  std::string margin_text() const;
  // The scheduler's time began before the program.
  double start_s() const { return limit_s_ > 0 ? std::min(begin_s_, end_s_ - limit_s_) : begin_s_; }
  double left_s() const { return end_s_ - outside_.now_s(); }

  const double deck_margin_s_, begin_s_;
  const Outside outside_;
  std::unique_ptr<Scheduler> scheduler_;  // wall_time = "auto"
  std::string source_;                    // source of the limit: "slurm", "pbs", "limits.wall_time"
  // number of the newest answer that was read
  int64_t last_answer_ = 0;
  double end_s_ = 0;    // on the clock of outside_; 0 = no limit
  double limit_s_ = 0;  // the whole time granted; 0 = not known
  double margin_s_;
};

}  // namespace job
