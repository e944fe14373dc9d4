// SPDX-License-Identifier: Apache-2.0
// Goodput: the share of the job time that trained steps which count. What the rest was spent on,
// and what each failure cost.
#pragma once

#include <string>
#include <vector>

#include "job/attempt_log.hpp"

namespace job {

// The time of all starts of a run, in seconds. It has many members because each part has one.
struct Goodput {
  double job_s = 0;   // of all processes; the other parts but idle_s and the waits add up to it
  double idle_s = 0;  // between two processes
  double training_s = 0, evaluation_s = 0, checkpoint_s = 0, setup_s = 0, redone_s = 0;
  double data_s = 0, exchange_s = 0;  // waits within training
  int64_t redone_steps = 0;
  int64_t failures = 0;          // starts that failed or were killed
  double failures_setup_s = 0;   // of the starts after them
  double failures_redone_s = 0;  // of them
  std::string last_failure;
};
// `own`: what the newest start has spent until now.
Goodput goodput_of(const AttemptLog& log, const Spent& own);

// Returns the lines of the log about it.
std::vector<std::string> goodput_lines(const AttemptLog& log, const Spent& own);

}  // namespace job
