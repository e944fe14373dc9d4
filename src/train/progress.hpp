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
  // Seconds of job time by category, of all attempts. redone: what attempts did after the checkpoint from which the
  // next one went on.
  struct Times {
    double setup = 0, training = 0, evaluation = 0, checkpoint = 0, redone = 0;
    double total() const { return setup + training + evaluation + checkpoint + redone; }
  };
  // Charges the time since the last call to a category, and `cores` of all ranks with it. Returns the seconds.
  double charge(double Times::*category) {
    double seconds = watch_.restart();
    times.*category += seconds, core_s += seconds * cores;
    return seconds;
  }

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
  double core_hours() const { return core_s / 3600; }

  Times times;
  double core_s = 0;  // job time times compute threads of all ranks, all attempts
  double cores = 1;   // of this attempt
  int64_t attempts = 1;
  int64_t bad_samples = 0;       // examples that had to be replaced
  int64_t skipped_steps = 0;     // without an update, because something was not finite
  int64_t overflowed_steps = 0;  // without an update, because gradients were too large for fp16
  int64_t skipped_examples = 0;  // of the stream, left out when the run went back
  // Where step 0 would lie in the stream of examples, and in their count, if all steps had had this attempt's batch:
  // not 0 once examples were left out, or the batch was changed on the way.
  int64_t stream_offset = 0, seen_offset = 0;
  double last_step_s = 0;
  double save_s = 0;      // what the last save took until it was durable
  double peak_flops = 0;  // of all devices together; 0: not known

  // Name and value of everything that must survive a restart.
  std::map<std::string, double> save() const {
    return {{"setup_s", times.setup},
            {"training_s", times.training},
            {"evaluation_s", times.evaluation},
            {"checkpoint_s", times.checkpoint},
            {"redone_s", times.redone},
            {"core_s", core_s},
            {"save_s", save_s},
            {"attempts", double(attempts)},
            {"bad_samples", double(bad_samples)},
            {"skipped_steps", double(skipped_steps)},
            {"overflowed_steps", double(overflowed_steps)},
            {"skipped_examples", double(skipped_examples)},
            {"stream_offset", double(stream_offset)},
            {"seen_offset", double(seen_offset)}};
  }
  // Takes over what a checkpoint holds; what this attempt has spent so far is added by add().
  void load(const std::map<std::string, double>& saved) {
    auto get = [&](const char* name) {
      auto it = saved.find(name);
      return it == saved.end() ? 0.0 : it->second;
    };
    times = {get("setup_s"), get("training_s"), get("evaluation_s"), get("checkpoint_s"), get("redone_s")};
    core_s = get("core_s"), save_s = get("save_s");
    attempts = int64_t(get("attempts")) + 1;
    bad_samples = int64_t(get("bad_samples"));
    overflowed_steps = int64_t(get("overflowed_steps"));
    skipped_steps = int64_t(get("skipped_steps")), skipped_examples = int64_t(get("skipped_examples"));
    stream_offset = int64_t(get("stream_offset")), seen_offset = int64_t(get("seen_offset"));
  }
  void add(double Times::*category, double seconds, double with_cores) {
    times.*category += seconds, core_s += seconds * with_cores;
  }

 private:
  base::Stopwatch watch_;
  int64_t steps_here_ = 0, timed_steps_ = 0, timed_examples_ = 0;
  double timed_s_ = 0;
};

}  // namespace train
