// SPDX-License-Identifier: Apache-2.0
// Runs the evaluators of a run when they are due, and acts on their values.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "train/attempt.hpp"
#include "train/evaluation_journal.hpp"
#include "train/feed.hpp"
#include "train/run_files.hpp"

namespace train {

// The steps at which an evaluator runs.
struct EvaluationTimes {
  int64_t every = 0;  // steps; 0: only at start or end
  bool at_start = false, at_end = true;
  std::function<bool(int64_t step)> tests{};  // true: a test phase follows (phases.hpp)

  // True if the evaluator runs at this step. `last` is true if the run ends at this step.
  bool due(int64_t step, int64_t total, bool last) const {
    return config::is_time(step, every, total, at_end, false) || (at_end && last) ||
           (tests && tests(step));
  }
  // Returns "every 500", "at the end" and so on, for the log.
  std::string describe() const {
    if (every > 0) return fmt::format("every {}", every);
    if (tests) return at_start ? "at the start and in test phases" : "in test phases";
    if (!at_start && !at_end) return "never";
    return !at_start ? "at the end" : !at_end ? "at the start" : "at start and end";
  }
};

// Selects the evaluators to run.
enum class Which {
  at_start,
  due,
  missing  // due at this step, but cut off in the attempt before
};

// True if an evaluator is to run. `has_values` returns true if the step has values already; it is
// called only if that matters.
inline bool is_wanted(const EvaluationTimes& times, Which which, int64_t step, int64_t total,
                      bool last, const std::function<bool()>& has_values) {
  if (which == Which::at_start) return times.at_start;
  return times.due(step, total, last) && (which == Which::due || !has_values());
}

// An evaluator of the deck, with what it needs. Training and --mode eval run it alike.
struct Evaluation {
  std::string name;
  EvaluationTimes times;
  eval::EvalOptions options;
  int64_t examples = 0;  // of its data set
  // Null and empty while the evaluation is closed.
  std::unique_ptr<eval::Evaluator> evaluator;
  const data::Dataset* dataset = nullptr;
  eval::DataSets further;
  step::PassId pass;  // of the job's engine

  std::set<std::string> data_sets() const;  // their names
  // Builds the evaluator. Its data sets must be open.
  void open(const Job& job);
  void close();
};

// Makes an open evaluator and checks the data that it reads.
Evaluation make_evaluation(const Job& job, const std::string& name,
                           const eval::EvalOptions& options, step::PassId pass,
                           const EvaluationTimes& times = {});
// Runs an evaluator on the job's engine. All ranks call. folder, journal: see eval::Context.
eval::Result run_evaluation(const Evaluation& evaluation, const Job& job,
                            const data::LoaderOptions& loader, step::Weights weights,
                            const std::function<bool()>& must_stop, const std::string& folder = {},
                            eval::Journal* journal = nullptr);
// Returns " in f32" if the evaluator has a type of its own, for the log.
std::string in_own_type(const Evaluation& evaluation);
// Describes the first value that is not finite; "" if there is none.
std::string nonfinite_problem(const std::string& name, int64_t step, const eval::Result& result);
// Returns the console line: "eval=val step=12 perplexity=31.2 examples=40 s=0.1".
std::string evaluation_line(const std::string& name, int64_t step, const eval::Result& result,
                            double seconds);

class Evaluations {
 public:
  struct Outcome {
    bool complete = true;  // false: an evaluation was cut off because the run must stop
    std::string problem;   // set if a value is not finite: the run ends with this error
  };

  // Makes the evaluators and checks the data that they read. Those that do not run at the start are
  // then closed, with their data, until they are first needed. All ranks call `must_stop` between
  // two batches.
  Evaluations(Attempt& attempt, RunFiles& files, Feed& feed, std::function<bool()> must_stop);

  bool due(int64_t step) const;
  Outcome run(Which which);
  // True if early_stop ends the run at this step.
  bool stopped_early() const;
  bool made_up() const { return made_up_; }  // this attempt did an evaluation that was missing
  // True if a value since the last call of saved() makes a save due: it was the best one so far, or
  // passed the threshold.
  bool wants_save() const { return found_best_ || passed_; }
  void saved() { found_best_ = passed_ = false; }
  // Removes journals that no later attempt needs. saved_step: step of the newest checkpoint that
  // is complete.
  void saved_up_to(int64_t saved_step) { journals_.drop(saved_step); }
  std::string describe() const;  // for the log; "" without evaluators

 private:
  // Returns false if the run must stop before the evaluator is open.
  bool open(Evaluation& e);
  bool wanted(const Evaluation& e, Which which) const;
  void take(const Evaluation& e, Which which, eval::Result result, double seconds);

  Attempt& attempt_;
  RunFiles& files_;
  Feed& feed_;
  std::function<bool()> must_stop_;
  Journals journals_;
  std::vector<Evaluation> evaluations_;
  bool found_best_ = false, passed_ = false, made_up_ = false;
};

}  // namespace train
