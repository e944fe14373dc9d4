// SPDX-License-Identifier: Apache-2.0
// The evaluators of a run: when each is due, what follows from its values.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/attempt.hpp"
#include "train/feed.hpp"
#include "train/run_files.hpp"

namespace train {

// When an evaluator runs.
struct EvaluationTimes {
  int64_t every = 0;  // steps; 0: only at start or end
  bool at_start = false, at_end = true;

  // `last`: the run ends at this step.
  bool due(int64_t step, int64_t total, bool last) const {
    return config::is_time(step, every, total, at_end, false) || (at_end && last);
  }
};

// The evaluators that are to run now.
enum class Which {
  at_start,
  due,
  missing
};  // missing: due at this step, and cut off in the attempt before

// `has_values`: there are values of this step already; asked only where they matter.
inline bool is_wanted(const EvaluationTimes& times, Which which, int64_t step, int64_t total,
                      bool last, const std::function<bool()>& has_values) {
  if (which == Which::at_start) return times.at_start;
  return times.due(step, total, last) && (which == Which::due || !has_values());
}

class Evaluations {
 public:
  struct Outcome {
    bool complete = true;  // none was cut off, because the run must stop
    std::string problem;   // a value is not finite: the run ends with this error
  };

  // Makes the evaluators and checks the data that they read. `must_stop`: all ranks, between two
  // batches.
  Evaluations(Attempt& attempt, RunFiles& files, Feed& feed, std::function<bool()> must_stop);
  // Finds the passes of the evaluators in the engine.
  void find_passes();

  bool due(int64_t step) const;
  Outcome run(Which which);
  // True if early_stop ends the run at this step.
  bool stopped_early() const;
  bool made_up() const { return made_up_; }  // this attempt did an evaluation that was missing
  // True if values since the last call of forget_found_best held the best one so far: the next
  // checkpoint must keep it.
  bool found_best() const { return found_best_; }
  void forget_found_best() { found_best_ = false; }
  std::string describe() const;  // for the log; "" without evaluators

 private:
  struct Evaluation {
    std::string name;
    EvaluationTimes times;
    eval::EvalOptions options;
    std::unique_ptr<eval::Evaluator> evaluator;
    const data::Dataset& dataset;
    models::ForwardPass* pass = nullptr;  // of the engine
  };
  bool wanted(const Evaluation& e, Which which) const;
  eval::Result evaluate(const Evaluation& e);
  void take(const Evaluation& e, Which which, eval::Result result, double seconds);

  Attempt& attempt_;
  RunFiles& files_;
  Feed& feed_;
  std::function<bool()> must_stop_;
  std::vector<Evaluation> evaluations_;
  bool found_best_ = false, made_up_ = false;
};

}  // namespace train
