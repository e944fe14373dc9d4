// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run: when a save is due, the saves under way, and what is restored.
#pragma once

#include <memory>
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
  // The run goes on from this checkpoint, which is its newest; -1: from none.
  void continue_from(int64_t step);

  // True if a save is due by the deck at this step.
  bool due() const;
  // Begins a save, after the one under way. All ranks call.
  void begin();
  // Moves the save under way on; `wait`: to its end. All ranks call.
  void watch(bool wait);
  bool pending() const { return saver_.pending(); }
  // Seconds that a save takes, as measured so far, with the one under way.
  double outlook_s() const;
  int64_t saved_step() const {
    return saved_step_;
  }  // of the newest checkpoint that was begun or restored
  const std::string& error() const { return error_; }  // of the newest save that failed

  // Returns what a checkpoint fills.
  checkpoint::State target() const;
  // Fills the tensors from the newest checkpoint of this run, and returns the state; nothing if
  // there is none. `going_back`: only files of this attempt's own past count.
  struct Found {
    RunState state;
    checkpoint::Restored from;
  };
  std::optional<Found> restore(bool going_back, const comm::Poll& poll);

 private:
  checkpoint::State snapshot() const;

  Attempt& attempt_;
  RunFiles& files_;
  job::Stops& stops_;
  checkpoint::Saver saver_;
  int64_t every_;
  double bytes_ = 0;  // of a checkpoint
  std::string error_;
  int64_t saved_step_ = -1;
};

}  // namespace train
