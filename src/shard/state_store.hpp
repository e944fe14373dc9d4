// SPDX-License-Identifier: Apache-2.0
// The next values of state tensors (ParameterKind::state) while a step runs. A pass reads the
// present value like a weight and writes the next one here. The next value becomes the present one
// only if the step is applied, which is decided on the device.
//
// A next value is whole on every rank, and every rank must write the same bits. It is computed from
// the examples of all ranks (nn::BatchGroup) and passes (PassSums), so the last pass writes it.
#pragma once

#include "shard/pass_sums.hpp"
#include "shard/stores.hpp"

namespace shard {

class StateStore {
 public:
  // `keeps` chooses the units of state that passes write here; none given: all of them.
  explicit StateStore(Fabric fabric, const std::function<bool(const Unit&)>& keeps = {});

  // Sets the next values to the present ones. Call it before the first pass of a step.
  void begin_step(const WeightStore& weights);
  device::View next(int parameter) const;  // f32 [size]
  // The sums over passes that next values are formed from.
  PassSums& sums() { return sums_; }
  const PassSums& sums() const { return sums_; }
  // Sets the present values to the next ones if the step is applied (`decided`: see kernels::Clip).
  // Call WeightStore::publish afterwards.
  void commit(const WeightStore& weights, device::View decided);

 private:
  device::View whole(size_t unit) const;

  Fabric fabric_;
  std::vector<bool> kept_;            // by unit
  std::vector<device::Buffer> next_;  // by unit; empty if the unit is not kept
  PassSums sums_;
};

}  // namespace shard
