// SPDX-License-Identifier: Apache-2.0
// The timed steps of --mode bench.
#pragma once

#include <vector>

#include "train/job.hpp"

namespace modes {

// Times of the steps. Steps that others took CPU time from, and those that had slower cores, say
// nothing about how steady a step is.
struct StepTimes {
  std::vector<double> all, alone;  // ms, sorted
  std::vector<double>
      at_speed;  // of those alone: the cores were about as fast as ever, before and after
  double slowest_cores = 1;       // of the fastest
  double data_s = 0, comm_s = 0;  // of all steps
  double loss = 0;
  device::Transfers transfers;  // of a step
  double mean() const;
  double median() const;
};

// All ranks. Runs the steps of [bench] on the training data of the job.
StepTimes time_steps(train::Job& job);

// The value below which 99 % of the sorted values lie.
double p99_of(const std::vector<double>& sorted);

}  // namespace modes
