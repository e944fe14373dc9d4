// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run: decides when a save is due, runs saves, restores.
#pragma once

#include <string>

#include "checkpoint/checkpoint.hpp"
#include "job/stops.hpp"
#include "train/attempt.hpp"
#include "train/run_files.hpp"

namespace train {

class Saves {
 public:
  Saves(Attempt& attempt, RunFiles& files, job::Stops& stops);

  // Plans files and memory of the saves to come, and logs them. All ranks call.
  void plan();
  // Sets the checkpoint that the run continues from, its newest one; -1: none.
  void continue_from(int64_t step);

  // True if the deck asks for a save at this step.
  bool due() const;
  // Begins a save once the pending one is finished. All ranks call.
  void begin();
  // Advances the pending save; `wait`: to its end. All ranks call.
  void watch(bool wait);
  bool pending() const { return saver_.pending(); }
  // Returns the seconds that a save takes, as measured so far, including the pending one.
  double outlook_s() const;
  // Returns the step of the newest checkpoint that was begun or restored.
  int64_t saved_step() const { return saved_step_; }
  const std::string& error() const { return error_; }  // error of the newest save that failed

  // Returns the state that a checkpoint fills.
  checkpoint::State target() const;
  // Fills the tensors from the newest checkpoint of this run and returns the state; returns nothing
  // if there is none. `going_back`: only files of this attempt's own past count.
  struct Found {
    RunState state;
    checkpoint::Restored from;
  };
  // `before_weights` gets the state before the weights are read; see State::before_tensors.
  std::optional<Found> restore(bool going_back, const comm::Poll& poll,
                               const std::function<void(const RunState&)>& before_weights = {});

 private:
  checkpoint::State snapshot() const;

  Attempt& attempt_;
  RunFiles& files_;
  job::Stops& stops_;
  checkpoint::Saver saver_;
  int64_t every_;
  double bytes_ = 0;  // size of a checkpoint
  std::string error_;
  int64_t saved_step_ = -1;
};

}  // namespace train
