// SPDX-License-Identifier: Apache-2.0
// The model's sums over the examples of a step. They follow the tree: over the slices of a pass,
// over fsdp, over passes, over replicas. So their bits do not depend on the mesh.
#pragma once

#include <vector>

#include "comm/mesh.hpp"
#include "models/model.hpp"
#include "step/geometry.hpp"
#include "step/step_report.hpp"

namespace step {

class StepSums {
 public:
  // `one_place`: all passes write to one place, because graphs repeat them.
  StepSums(const models::Model& model, const Geometry& geometry, comm::Mesh& mesh,
           device::Queue& queue, device::Ledger& ledger, bool one_place);
  ~StepSums();  // waits for an exchange in flight
  StepSums(const StepSums&) = delete;

  const std::vector<models::Measure>& measures() const { return measures_; }
  // Returns the place for the sums of pass m, f64 [slices, columns].
  device::View place_of(int64_t m) const;
  // Adds up the slices of a queued pass.
  void finish_pass(int64_t m);
  // Starts to add up the passes of all ranks, while other exchanges run.
  void begin_exchange();
  // Adds up the passes of all ranks and starts the copy to the host.
  void finish_step(int64_t step);
  // Returns the loss of the finished step, f64 [1], in the queue's memory.
  device::View loss() const { return of_pass(0).slice(0, 1); }
  // Fills sums and measures of the report.
  void read(int64_t step, StepReport& report);

 private:
  device::View of_pass(int64_t m) const;
  void sum_over_replicas();

  std::vector<models::Measure> measures_;
  int64_t columns_;
  Geometry geometry_;
  comm::Mesh& mesh_;
  device::Queue& queue_;
  device::Buffer sums_;        // by pass
  device::Buffer slice_sums_;  // slices of the current pass; empty if passes write to sums_
  device::Fetched host_sums_;  // a copy of the step's sums
  comm::Ticket exchange_;      // of sums_
};

}  // namespace step
