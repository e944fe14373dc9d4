// SPDX-License-Identifier: Apache-2.0
// The next values of state tensors (ParameterKind::state) while a step runs. A pass reads the
// present value like a weight and writes the next one here. The weights take it over only where the
// step is applied, which is decided on the device.
//
// A next value is whole on every rank, and every rank must write the same bits: it is computed from
// the examples of all ranks (nn::BatchGroup). Micro-batches of a step follow each other: each one
// finds the values that the one before has written.
#pragma once

#include "shard/stores.hpp"

namespace shard {

class StateStore {
 public:
  explicit StateStore(Fabric fabric);

  // Before the first pass of a step: the next values are the present ones.
  void begin_step(const WeightStore& weights);
  device::View next(int parameter) const;  // f32 [size]
  // The present values become the next ones, unless the step is not applied (`decided`: see
  // kernels::Clip). Call WeightStore::publish afterwards.
  void commit(const WeightStore& weights, device::View decided);

 private:
  device::View whole(size_t unit) const;

  Fabric fabric_;
  std::vector<device::Buffer> next_;  // by unit; none where the unit holds no state
};

}  // namespace shard
