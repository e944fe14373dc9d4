// SPDX-License-Identifier: Apache-2.0
// The report of one step.
#pragma once

#include <cmath>
#include <vector>

#include "device/transfers.hpp"
#include "kernels/paths.hpp"
#include "optim/optimizer.hpp"

namespace step {

struct StepReport {
  std::vector<double> sums;      // over the examples, by Model::sum_columns(); empty in a plan
  std::vector<double> measures;  // in the order of Model::measures(); empty in a plan
  double loss() const { return measures.empty() ? 0 : measures.front(); }
  bool finite = true;  // false: nothing was updated
  // True if gradients were too large for fp16 at their loss scale, which has become smaller.
  bool overflow() const {
    return !finite && std::isfinite(loss()) && gradients.next_loss_scale < gradients.loss_scale;
  }
  // True if nothing was updated because gradients were too large (optimizer.drop_norm).
  bool dropped() const {
    return !finite && std::isfinite(loss()) && std::isfinite(gradients.gradients.global);
  }
  optim::Inspection gradients;
  optim::UpdateReport update;
  int64_t flops = 0;            // FLOPs of this rank's products, including recomputed ones
  device::Transfers transfers;  // while the step was queued
  kernels::PathCounts paths{};  // the paths of its ops on a GPU
  // Seconds that the host waited for data and for exchanges since the previous report. Both are
  // parts of the time between the two reports, whichever steps were submitted in that time.
  double data_s = 0, comm_s = 0;
};

}  // namespace step
