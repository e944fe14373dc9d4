// Where the time went, over all attempts at the run: saved in checkpoints, so that a resumed run counts on.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.hpp"

namespace train {

class Progress {
 public:
  // Seconds of job time by category, of all attempts.
  struct Times {
    double setup = 0, training = 0, evaluation = 0, checkpoint = 0;
    double total() const { return setup + training + evaluation + checkpoint; }
  };
  // Charges the time since the last call to a category.
  void charge(double Times::*category) { times.*category += watch_.restart(); }

  // Step times of this attempt, for rates: the first two steps are not timed (warm-up), evaluation and saving are left
  // out.
  void step_done(double seconds, int64_t examples) {
    last_step_s = seconds;
    if (++steps_here_ <= 2) return;
    timed_s_ += seconds, ++timed_steps_, timed_examples_ += examples;
  }
  bool timed() const { return steps_here_ > 2; }
  double mean_step_s() const { return timed_steps_ ? timed_s_ / double(timed_steps_) : last_step_s; }
  double examples_per_s() const { return timed_s_ > 0 ? double(timed_examples_) / timed_s_ : 0; }

  Times times;
  int64_t attempts = 1;
  int64_t bad_samples = 0;  // examples that had to be replaced
  double last_step_s = 0;
  double peak_flops = 0;  // of all ranks together, measured at start

  // Name and value of everything that must survive a restart.
  std::map<std::string, double> save() const {
    return {{"setup_s", times.setup},           {"training_s", times.training}, {"evaluation_s", times.evaluation},
            {"checkpoint_s", times.checkpoint}, {"attempts", double(attempts)}, {"bad_samples", double(bad_samples)}};
  }
  void load(const std::map<std::string, double>& saved) {
    auto get = [&](const char* name) {
      auto it = saved.find(name);
      return it == saved.end() ? 0.0 : it->second;
    };
    times = {times.setup + get("setup_s"), get("training_s"), get("evaluation_s"), get("checkpoint_s")};
    attempts = int64_t(get("attempts")) + 1;
    bad_samples = int64_t(get("bad_samples"));
  }

 private:
  base::Stopwatch watch_;
  int64_t steps_here_ = 0, timed_steps_ = 0, timed_examples_ = 0;
  double timed_s_ = 0;
};

}  // namespace train
