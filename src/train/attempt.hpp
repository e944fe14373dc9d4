// SPDX-License-Identifier: Apache-2.0
// State that the parts of a run share: the job, the run state that checkpoints hold, and how far
// this attempt has come.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "job/run_dir.hpp"
#include "train/job.hpp"
#include "train/observers.hpp"
#include "train/progress.hpp"
#include "train/run_state.hpp"

namespace train {

// How the program was started: command line and start time.
struct Start {
  std::string deck_path, mesh_selector;
  int64_t overrides = 0;                  // number of --set
  std::vector<std::string> allow_change;  // --allow-change
  double begin_s = 0;                     // start of the program, on base::now_s()
  // --fast-dev: the attempt ends after this step of the run (0: at the end of the run), and runs
  // the evaluators there once.
  int64_t trial_steps = 0;
  bool trial_evaluates = true;  // false: not again
};

struct Attempt {
  Attempt(Job& the_job, const Start& how, std::unique_ptr<job::RunDirectory> taken)
      : job(the_job),
        recipe(the_job.recipe()),
        start(how),
        directory(std::move(taken)),
        state(the_job.recipe(), the_job.deck()),
        begin_s(how.begin_s) {}

  Job& job;
  const Recipe& recipe;
  Start start;
  std::unique_ptr<job::RunDirectory> directory;
  RunState state;
  Pace pace;
  int64_t total = 0;       // steps of the run
  int64_t settled = 0;     // newest step whose report is known; at most one before state.step
  int64_t first_step = 0;  // step that this attempt started from
  double begin_s = 0;      // start of the attempt, or of its part after a rewind
  double step_s = 0;       // training time since the last report
  double init_s = 0;       // spent to build the engine
  records::Metrics* metrics = nullptr;  // once RunFiles has opened them
  Observers observers;                  // empty until the engine exists

  step::Engine& engine() const { return job.engine(); }
  comm::Comm& world() const { return *job.mesh().world; }
  bool leads() const { return job.mesh().rank() == 0; }
  double uptime_s() const { return base::now_s() - begin_s; }
  // Finds `total`, after the data were opened and whenever the place in the stream has changed.
  void find_total();
  // Returns the number of epochs that have ended with this step. The last step also ends an epoch
  // that it cuts off.
  int64_t epochs_ended(int64_t step) const;
  // True if train.test_every lets a test follow this step.
  bool test_follows(int64_t step) const;
  // Returns the steps between two events. 0 means never in every unit, though 0 epochs as a length
  // would be one step.
  int64_t period(const config::Duration& every) const;
  void charge(double Progress::Times::*category) { pace.charge(state.progress, category); }
  // Charges training and adds the seconds to the step that is reported next.
  void charge_training() { step_s += pace.charge(state.progress, &Progress::Times::training); }
  // Records the phase that the job enters, for failure reports and for readers of the run
  // directory.
  void enter(const char* phase) const;
};

}  // namespace train
