// SPDX-License-Identifier: Apache-2.0
// [checkpoint] of the deck.
#pragma once

#include "checkpoint/io_limits.hpp"
#include "config/table.hpp"

namespace checkpoint {

struct CheckpointOptions {
  config::Duration every;
  double every_s = 900;
  bool first_step = false;
  int64_t keep_last = 2;
  int64_t keep_every_steps = 0;
  std::string best, passes;
  bool async = true;
  int64_t staging_mb = 4096;
  IoLimits io;
  std::string resume = "auto";
  bool stops_on_error = false;
  std::string branch_from;
  bool restart_data = false;
  void bind(config::Table& t);
};

// Returns the step number, or -1 if `resume` is one of the words.
int64_t resume_step(const std::string& resume);
// Returns N if `resume` is "-N", the N-th newest checkpoint; 0 otherwise.
int64_t resume_nth(const std::string& resume);

}  // namespace checkpoint
