// SPDX-License-Identifier: Apache-2.0
// The next values of state tensors (ParameterKind::state) while a step runs. A pass reads the
// present value like a weight and writes the next one here. The next value becomes the present one
// only if the step is applied, which is decided on the device.
//
// A next value is whole on every rank, and every rank must write the same bits. It is computed from
// the examples of all ranks (nn::BatchGroup) and passes (PassSums), so the last pass writes it.
//
// A step writes few rows of a large state (Parameter::by_rows). Its next value stays equal to the
// present one between steps, so that a step copies these rows alone.
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
  // Call it if present values have changed otherwise than by commit.
  void values_changed() { current_ = false; }
  device::View next(int parameter) const;  // f32 [size]
  // Keeps the next values of the rows `index` (i32 [count], may repeat rows) of a state by rows.
  // Call it before these rows are written; other rows must not be written. A step may call it
  // several times.
  void touch(int parameter, device::View index);
  // The sums over passes that next values are formed from.
  PassSums& sums() { return sums_; }
  // Makes room for the sums and rows of the steps that `planned` has counted.
  void reserve(const StateStore& planned);
  // Sets the present values to the next ones if the step is applied (`decided`: see kernels::Clip).
  // Call WeightStore::publish afterwards.
  void commit(const WeightStore& weights, device::View decided);

 private:
  // Rows that a call of `touch` has kept.
  struct Touched {
    int parameter = -1;
    int64_t rows = 0;
    device::Buffer index, before;  // i32 [rows], f32 [rows, width]
  };
  device::View whole(size_t unit) const;
  Touched make_touched(int parameter, int64_t rows) const;
  void commit_rows(const WeightStore& weights, const Touched& touched, device::View decided) const;

  Fabric fabric_;
  std::vector<bool> kept_;            // by unit
  std::vector<device::Buffer> next_;  // by unit; empty if the unit is not kept
  bool current_ = false;              // next values of states by rows are the present ones
  std::vector<Touched> touched_;      // in the order of the calls in a step
  size_t calls_ = 0;                  // of `touch` in this step
  PassSums sums_;
};

}  // namespace shard
