// SPDX-License-Identifier: Apache-2.0
// The time that all attempts of a run have spent, and the speed of this attempt.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.hpp"
#include "job/spent.hpp"
#include "train/device_times.hpp"

namespace train {

// Counts and times of all attempts of the run. Checkpoints hold them, so a resumed run continues
// the counts.
struct Progress {
  // Seconds of job time by category. `redone` is the time that attempts spent after the checkpoint
  // from which the next attempt continued.
  struct Times {
    double setup = 0, training = 0, evaluation = 0, checkpoint = 0, redone = 0;
    double total() const { return setup + training + evaluation + checkpoint + redone; }
  };

  Times times;
  double core_s = 0;  // job time times compute threads of all ranks
  DeviceTimes device_times;
  double save_s = 0;  // duration of the last save until it was durable
  int64_t attempts = 1;
  int64_t bad_samples = 0;       // examples that were replaced
  int64_t skipped_steps = 0;     // without an update: not finite, or dropped (drop_norm)
  int64_t overflowed_steps = 0;  // skipped steps whose gradients were too large for fp16
  int64_t skipped_examples = 0;  // examples of the stream that rewinds left out
  // The position of step 0 in the stream of examples, and in their count, if all steps had had this
  // attempt's batch size. Not 0 once examples were left out or the batch size has changed.
  int64_t stream_offset = 0, seen_offset = 0;
  int64_t stream_before = 0;  // examples of the stream before the data started over (restart_data)

  void add(double Times::*category, double seconds, double with_cores) {
    times.*category += seconds;
    core_s += seconds * with_cores;
    device_times.add(seconds * with_cores);
  }
  double core_hours() const { return core_s / 3600; }
};

// The clock of this attempt and its step times, for rates. The first two steps (warm-up),
// evaluation and saving are not timed.
class Pace {
 public:
  double cores = 1;       // compute threads of all ranks
  double peak_flops = 0;  // peak of all devices together; 0: not known

  // Charges the time since the last call to a category. Returns the seconds.
  double charge(Progress& progress, double Progress::Times::*category) {
    const double seconds = watch_.restart();
    add(progress, category, seconds);
    return seconds;
  }
  // Charges time that passed before the first call.
  void add(Progress& progress, double Progress::Times::*category, double seconds) {
    progress.add(category, seconds, cores);
    spent_[kind_of(category)] += seconds;
    job::keep_spent(spent_);
  }
  // Counts the part of training time that was spent waiting.
  void waited(double data_s, double exchange_s) {
    spent_[job::Spent::data] += data_s;
    spent_[job::Spent::exchange] += exchange_s;
    job::keep_spent(spent_);
  }
  // What this process spent its time on until the last charge.
  const job::Spent& spent() const { return spent_; }
  void set_spent(const job::Spent& spent) { spent_ = spent; }
  void step_done(double seconds, int64_t examples) {
    last_step_s_ = seconds;
    if (++steps_ <= 2) return;
    timed_s_ += seconds;
    ++timed_steps_;
    timed_examples_ += examples;
  }
  bool timed() const { return steps_ > 2; }
  double mean_step_s() const {
    return timed_steps_ ? timed_s_ / double(timed_steps_) : last_step_s_;
  }
  double slowest_step_s() const { return std::max(mean_step_s(), last_step_s_); }
  double examples_per_s() const { return timed_s_ > 0 ? double(timed_examples_) / timed_s_ : 0; }

 private:
  static job::Spent::Kind kind_of(double Progress::Times::*category) {
    return category == &Progress::Times::setup        ? job::Spent::setup
           : category == &Progress::Times::training   ? job::Spent::training
           : category == &Progress::Times::evaluation ? job::Spent::evaluation
           : category == &Progress::Times::checkpoint ? job::Spent::checkpoint
                                                      : job::Spent::redone;
  }

  base::Stopwatch watch_;
  job::Spent spent_;
  int64_t steps_ = 0, timed_steps_ = 0, timed_examples_ = 0;
  double timed_s_ = 0, last_step_s_ = 0;
};

}  // namespace train
