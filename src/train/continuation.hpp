// SPDX-License-Identifier: Apache-2.0
// The places that a run goes on from: its own newest checkpoint, another run's, or initial weights;
// and the checkpoint that it goes back to after a bad step.
#pragma once

#include <string>

#include "train/attempt.hpp"
#include "train/saves.hpp"

namespace train {

class Continuation {
 public:
  // `poll`: called by all ranks while files are read.
  Continuation(Attempt& attempt, Saves& saves, comm::Poll poll)
      : attempt_(attempt), saves_(saves), poll_(std::move(poll)) {}

  // Fills weights and state. All ranks call. Returns what from, for the log: "checkpoint",
  // "branch", "init" or "random_init".
  std::string begin();
  // Goes back to the newest checkpoint. The examples since then are left out of the stream; returns
  // their number. Error that begins with `problem` if there is no checkpoint.
  int64_t go_back(const std::string& problem);
  // Counts what earlier attempts did after the checkpoint that was restored, by the uptime in their
  // last rows.
  void count_lost(const records::Metrics& metrics);

 private:
  bool resume();
  bool branch();
  void initialise();
  void check_data(const RunState& saved) const;
  void continue_from(const RunState& saved);
  void restore_loss_scale(const RunState& saved);

  Attempt& attempt_;
  Saves& saves_;
  comm::Poll poll_;
  int64_t restored_attempt_ = 0;  // that wrote the checkpoint this one goes on from
  double restored_uptime_s_ = 0;  // of that attempt, then
};

}  // namespace train
