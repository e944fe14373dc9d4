// SPDX-License-Identifier: Apache-2.0
// A second set of weights that follows the trained ones: the average of [ema], which evaluations
// run on, or a teacher, which passes of a training step run on. A step that is applied updates it
// after the weights, on the device. A step that is not applied leaves it unchanged. An update just
// before the next step would be the same, because no pass runs in between.
//
// It has the weights' layout, and each rank keeps the elements that it owns. Replicated parameters
// also have a buffer for the whole. A teacher can have state tensors of its own, such as running
// statistics, whose next values its passes write. All other tensors are read from the weights.
//
// Checkpoints hold its tensors under a root of their own, as /ema/PATH or /teacher/PATH. Nothing
// else is kept from step to step.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ema_update.hpp"
#include "optim/row_norms.hpp"
#include "shard/state_store.hpp"

namespace optim {

class SecondWeights {
 public:
  struct Options {
    std::string root;  // of its names in checkpoints: "/ema/"
    // Returns the share that the update at a step keeps; nothing: the step makes no update.
    std::function<std::optional<float>(int64_t step)> keep;
    // Returns true for a unit that these weights store themselves.
    std::function<bool(const shard::Unit&)> owns;
    int prefetch = 0;  // units gathered ahead of use
    // True: rows that the optimizer brings to unit length have unit length here, too.
    bool unit_rows = false;
  };
  // `first`: the trained weights, which must outlive this object.
  SecondWeights(shard::Fabric fabric, Options options, const shard::WeightStore& first);

  // Copies the trained weights. Call it at the start, and after the trained weights were replaced.
  void start();
  // Sets the next values of its states to the current ones. Call it before the passes of a step.
  void begin_step();
  // Call it after the update of `step`; `decided`: Optimizer::decision().
  void update(int64_t step, device::View decided);
  // Returns the weights, for forward passes, and gathers them after an update. All ranks must call.
  shard::WeightStore& weights();
  // Returns null if it has no states of its own.
  shard::StateStore* states() { return states_.get(); }
  // Returns the store without gathering, for stores that read it. Call weights() first.
  const shard::WeightStore& store() const { return second_; }
  // Call it after a restore has filled the listed tensors.
  void changed() { gathered_ = false; }
  void list_state(std::vector<shard::TensorSlice>& out) const;

 private:
  bool owns(int unit) const { return options_.owns(fabric_.layout.units()[size_t(unit)]); }
  int units() const { return int(fabric_.layout.units().size()); }

  shard::Fabric fabric_;
  Options options_;
  const shard::WeightStore& first_;
  shard::WeightStore second_;
  std::unique_ptr<shard::StateStore> states_;
  kernels::OpList<kernels::EmaUpdate> updates_;
  Pieces pieces_;
  std::unique_ptr<RowNorms> row_norms_;  // with options.unit_rows
  bool gathered_ = false;
};

}  // namespace optim
