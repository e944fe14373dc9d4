// SPDX-License-Identifier: Apache-2.0
// Times the steps of --mode bench.
#pragma once

#include <vector>

#include "modes/bench_spans.hpp"
#include "train/job.hpp"

namespace modes {

// Times of the steps. Steps from which other programs took CPU time, or whose cores were slower, do
// not show how steady a step is. `alone` leaves out the steps with lost CPU time, `at_speed` also
// the steps on slower cores.
struct StepTimes {
  std::vector<double> all, alone;  // ms, sorted
  // Steps of `alone` before and after which the cores were nearly at their fastest; ms, sorted.
  std::vector<double> at_speed;
  double slowest_cores = 1;       // speed of the slowest cores / speed of the fastest
  double data_s = 0, comm_s = 0;  // sums over all steps
  // The wait of the rank that waits least in a step. That rank comes last: it waits for messages,
  // not for other ranks.
  double exposed_s = 0;
  comm::Background background;  // over all steps
  double loss = 0;
  int64_t submitted = 0;        // steps, including the warm-up
  device::Transfers transfers;  // transfers of one step
  kernels::PathCounts paths{};  // of one step: which paths its ops took on a GPU
  SpanMark spans;               // begun in all steps
  double mean() const;
  double median() const;
};

// Runs the steps of [bench] on the training data of the job. All ranks call.
StepTimes time_steps(train::Job& job);

// Returns the 99th percentile of sorted values.
double p99_of(const std::vector<double>& sorted);

}  // namespace modes
