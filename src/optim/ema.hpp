// SPDX-License-Identifier: Apache-2.0
// [ema]: an exponential moving average of the trained weights, for evaluation. A step that is
// applied updates the average after the weights, on the device. A step that is not applied leaves
// it unchanged. The average has the weights' layout, and each rank keeps the elements that it owns.
// Replicated parameters also have a buffer for the whole, which only evaluations fill. Frozen and
// state tensors are read from the weights.
//
// Checkpoints hold the average as /ema/PATH. Nothing else is kept from step to step.
#pragma once

#include <string>
#include <vector>

#include "config/duration.hpp"
#include "config/table.hpp"
#include "kernels/ema_update.hpp"
#include "optim/schedule.hpp"
#include "shard/stores.hpp"

namespace optim {

struct EmaOptions {
  double decay = 0.9999;
  config::Duration warmup, every{config::Duration::Unit::steps, 1};
  void bind(config::Table& t);
};

// The options in steps.
struct EmaRule {
  double decay = 0;
  int64_t warmup = 0, every = 1;

  EmaRule() = default;
  EmaRule(const EmaOptions& options, const Clock& clock);
  bool due(int64_t step) const { return step % every == 0; }
  // Returns the share of the average that the update at `step` keeps.
  float keep(int64_t step) const;
};

class Ema {
 public:
  // `weights` must outlive this object.
  Ema(shard::Fabric fabric, const EmaRule& rule, const shard::WeightStore& weights);

  // Sets the average to the weights. Call it at the start, and when the weights were replaced.
  void start();
  // Call it after the update of `step`; `decided`: Optimizer::decision().
  void update(int64_t step, device::View decided);
  // Returns the average, for forward passes, and gathers it after an update. All ranks must call.
  shard::WeightStore& average();
  // Returns the store of the average as it is, for stores that read it. average() comes first.
  const shard::WeightStore& store() const { return average_; }
  // Call it after a restore has filled the listed tensors.
  void changed() { gathered_ = false; }
  void list_state(std::vector<shard::TensorSlice>& out) const;

 private:
  shard::Fabric fabric_;
  EmaRule rule_;
  const shard::WeightStore& weights_;
  shard::WeightStore average_;
  kernels::OpList<kernels::EmaUpdate> updates_;
  bool gathered_ = false;
};

}  // namespace optim
