// SPDX-License-Identifier: Apache-2.0
// Chooses where a run continues from: its own newest checkpoint, another run's, or initial weights.
// After a bad step it restores the newest checkpoint.
#pragma once

#include <string>

#include "train/attempt.hpp"
#include "train/saves.hpp"

namespace train {

class Continuation {
 public:
  // Gets the step and the stream offset (progress.hpp) at which the run probably goes on.
  using Position = std::function<void(int64_t step, int64_t stream_offset)>;
  // All ranks call `poll` while files are read, and `position` before weights are made or read.
  Continuation(Attempt& attempt, Saves& saves, comm::Poll poll, Position position)
      : attempt_(attempt), saves_(saves), poll_(std::move(poll)), position_(std::move(position)) {}

  // Fills weights and state. All ranks call. Returns the kind of start for the log: "checkpoint",
  // "branch", "init" or "random_init".
  std::string begin();
  // Goes back to the newest checkpoint and leaves the examples since then out of the stream.
  // Returns the number of these examples. The Error begins with `problem` if there is no
  // checkpoint.
  int64_t go_back(const std::string& problem);
  // Counts the time that earlier attempts spent after the restored checkpoint, and records in the
  // log of attempts where the run continues. Call it once, with the number of this attempt known.
  void count_lost(const records::Metrics& metrics);

 private:
  bool resume();
  bool branch();
  void initialise();
  void check_data(const RunState& saved) const;
  void check_batches(const RunState& saved) const;
  void continue_from(const RunState& saved, const std::string& file);
  void tell_position(const RunState& saved, const std::string& file) const;
  void restore_loss_scale(const RunState& saved);

  Attempt& attempt_;
  Saves& saves_;
  comm::Poll poll_;
  Position position_;
  int64_t restored_attempt_ = 0;  // attempt that wrote the restored checkpoint
  double restored_uptime_s_ = 0;  // uptime of that attempt when it wrote it
  double known_lost_s_ = 0;       // by the log of attempts, at rank 0
};

// Returns "" if `saved`, restored from `file`, holds the position in the data. Otherwise says at
// which example the run with state `now` continues.
std::string position_problem(const RunState& saved, const RunState& now, const std::string& file);

}  // namespace train
