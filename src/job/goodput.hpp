// SPDX-License-Identifier: Apache-2.0
// Goodput: the share of the job time that was spent on training steps that count. Also what the
// rest was spent on, and what failures cost.
#pragma once

#include <string>
#include <vector>

#include "job/attempt_log.hpp"

namespace job {

// The time of all starts of a run, in seconds. It has many members because each part has one.
struct Goodput {
  double job_s = 0;   // of all processes: the sum of the other parts except idle_s and the waits
  double idle_s = 0;  // between two processes
  double training_s = 0, evaluation_s = 0, checkpoint_s = 0, setup_s = 0, redone_s = 0;
  double data_s = 0, exchange_s = 0;  // waits within training
  int64_t redone_steps = 0;
  int64_t failures = 0;          // starts that failed or were killed
  double failures_setup_s = 0;   // of the starts that followed the failed ones
  double failures_redone_s = 0;  // of the failed starts
  std::string last_failure;
};
// `own`: what the newest start has spent until now.
Goodput goodput_of(const AttemptLog& log, const Spent& own);

// Returns the goodput lines of the log.
std::vector<std::string> goodput_lines(const AttemptLog& log, const Spent& own);

}  // namespace job
