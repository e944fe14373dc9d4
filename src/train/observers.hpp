// SPDX-License-Identifier: Apache-2.0
// Observers of a run: traces, histograms, TensorBoard's files, hooks. An observer is one file here
// and one row in observers.cpp. It cannot change a step, but may ask the run to stop after one.
//
// After a step, everything that is due happens in this order (tests/run/hooks_test.py):
//   1. the update
//   2. its row of metrics
//   3. evaluators in alphabetical order; for each: whether its value is the best one, its row
//   4. a checkpoint, which is complete some steps later if it is written during training
//   5. the hooks of these events, during the steps that follow (job/hooks.hpp)
// A stop is decided between 3 and 4. A run that is killed continues after the step of its newest
// checkpoint, with the evaluations of that step that have no row.
//
// All ranks tell their observers the same events in the same order, except rows. For each event,
// observers are called in the order of observers.cpp:
//
//   started       the state is restored; evaluations at the start follow
//   step_begins   before the first example of a step is asked for
//   row           a row of metrics: of a step, then of each evaluation. Rank 0 alone has rows
//   settled       the update of a step is known, and its row is written. A step that is queued on a
//                 GPU settles after the next one has begun
//   evaluated     an evaluator has run
//   saved         a checkpoint is complete, maybe some steps after its own
//   step_ends     all work after a step is done, except saves that go on in the background
//   went_back     instead of step_ends: the run continues from an earlier step
//   ended         after the last checkpoint of the attempt, or after an error
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/saver.hpp"
#include "eval/evaluator.hpp"
#include "records/metrics.hpp"
#include "step/engine.hpp"

namespace train {

struct Attempt;

class Observer {
 public:
  // An evaluation at the current step.
  struct Evaluated {
    const std::string& name;
    const eval::EvalOptions& options;
    const eval::Result& result;
    double seconds;
    bool best;  // the best value so far
  };
  // How the attempt ends. An error of a single rank reaches only that rank's observers.
  struct Ending {
    base::Exit code;
    std::string reason;  // "finished", why the run stopped, or the error
  };

  virtual ~Observer() = default;
  virtual void started() {}
  virtual void step_begins(int64_t /*step*/) {}
  // group: records::kTrainRows or records::eval_rows(NAME).
  virtual void row(const std::string& /*group*/, int64_t /*step*/,
                   const records::MetricValues& /*values*/) {}
  // skipped: the step made no update.
  virtual void settled(int64_t /*step*/, const step::StepReport& /*report*/, bool /*skipped*/) {}
  virtual void evaluated(int64_t /*step*/, const Evaluated& /*evaluation*/) {}
  virtual void saved(const checkpoint::Saved& /*checkpoint*/) {}
  virtual void step_ends(int64_t /*step*/) {}
  virtual void went_back(int64_t /*step*/) {}
  virtual void ended(const Ending& /*ending*/) {}
  // Returns why the run must stop after this step; "" = it goes on.
  virtual std::string wants_stop() const { return ""; }
};

// The observers that a deck asks for.
class Observers {
 public:
  // Makes them. All ranks call, once the engine and the run directory exist.
  void open(const Attempt& attempt);
  // Calls a member of all observers: tell(&Observer::step_begins, step).
  template <class... Parameters, class... Arguments>
  void tell(void (Observer::*event)(Parameters...), const Arguments&... arguments) const {
    for (const std::unique_ptr<Observer>& one : all_) (one.get()->*event)(arguments...);
  }
  std::string wants_stop() const;

 private:
  std::vector<std::unique_ptr<Observer>> all_;
};

// A row makes its observer, or returns null if the deck does not ask for it. The attempt outlives
// the observer.
struct ObserverRow {
  const char* name;
  std::unique_ptr<Observer> (*make)(const Attempt& attempt);
};

}  // namespace train
