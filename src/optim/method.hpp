// SPDX-License-Identifier: Apache-2.0
// One optimizer is one Method: its state, the sums over whole tensors that it needs before an
// update, and its rule for elements. The engine does everything else for all optimizers: norms,
// clipping, learning rate, decay, schedule, exchange over ranks.
//
// A Method queues ops tensor by tensor (OpList), and the engine decides when they run. On GPUs one
// launch serves many tensors.
//
// To add an optimizer: a file with its options (keys of [optimizer]) and its Method, and a row in
// registry.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/table.hpp"
#include "kernels/apply_update.hpp"
#include "kernels/square_sums.hpp"
#include "shard/stores.hpp"

namespace optim {

// The part of one tensor that is in one cut of a unit and that this rank owns. Sums are formed
// piece by piece. A cut holds at most one piece of a tensor.
struct Piece {
  int unit = 0, parameter = 0;
  int64_t begin = 0, end = 0;  // elements of the logical, flattened tensor
  int64_t offset = 0;          // element `begin` in this rank's owned range of the unit
  int64_t count() const { return end - begin; }
};
using Pieces = std::vector<std::vector<std::vector<Piece>>>;  // by unit, by owned cut

// Totals over whole tensors, for ops to read: doubles, the same on every rank.
class TensorTotals {
 public:
  virtual ~TensorTotals() = default;
  virtual device::View of(int parameter) const = 0;
};

// One tensor in one step.
struct TensorStep {
  int64_t updates = 0;  // number of this update of the tensor, from 1; 0: its gradient is dropped
  float rate = 0, decay = 0, schedule = 1, inner_decay = 0;  // see kernels::Update

  bool updated() const { return updates > 0; }
};

struct StepInfo {
  int64_t step = 1;                     // number of the update, from 1
  kernels::Clip clip{};                 // in the queue's memory; also says if the update is applied
  std::span<const TensorStep> tensors;  // by parameter

  const TensorStep& of(int parameter) const { return tensors[size_t(parameter)]; }
};

// By parameter: true if a method updates the tensor, unless it is frozen.
using Chosen = std::vector<bool>;

class Method {
 public:
  virtual ~Method() = default;

  // Returns the number of sums over the whole tensor that an update needs. The first is always the
  // sum of squares.
  virtual int64_t sums(int /*parameter*/) const { return 1; }
  // Queues the op that adds a piece to the sums, which were zeroed for its cut. Default: the sum of
  // squares.
  virtual void sum(const Piece& /*piece*/, device::View gradient, device::View sums) {
    squares_.add({sums, gradient});
  }
  // Runs the ops that sum, measure and update have queued.
  virtual void run() { squares_.run(fabric_.queue); }
  virtual void begin_step(const StepInfo& /*info*/, const TensorTotals& /*totals*/) {}

  // Returns the number of further sums over the whole tensor, such as a norm of the weights or of
  // the direction. They take one more pass over weights and gradients, after begin_step. There is
  // no such pass if no tensor has such sums.
  virtual int64_t measures(int /*parameter*/) const { return 0; }
  // Queues the op that adds a piece to these sums, which were zeroed for its cut. Not called for
  // tensors without such sums, or whose gradient is dropped.
  virtual void measure(const Piece& /*piece*/, device::View /*weights*/, device::View /*gradient*/,
                       device::View /*sums*/) {}
  virtual void measured(const TensorTotals& /*totals*/) {}

  // Queues the update of a piece's weights and of their state. Not called for tensors whose
  // gradient is dropped.
  virtual void update(const Piece& piece, const kernels::Update& update) = 0;

  // Lists everything that the next update depends on besides weights and step number. The order is
  // the same on every rank.
  virtual void list_state(std::vector<shard::TensorSlice>& out) = 0;

 protected:
  Method(shard::Fabric fabric, Chosen chosen) : fabric_(fabric), chosen_(std::move(chosen)) {}
  // True for the tensors that this method updates. It has no state of other tensors.
  bool chosen(int parameter) const {
    const shard::Layout& layout = fabric_.layout;
    return layout.units()[size_t(layout.parameters()[size_t(parameter)].unit)].trained() &&
           chosen_[size_t(parameter)];
  }
  shard::Fabric fabric_;

 private:
  Chosen chosen_;
  kernels::OpList<kernels::SquareSums> squares_;
};

// The keys of one kind of optimizer, and the function that makes it.
struct MethodOptions : config::Table::Variant {
  // Returns the bytes of state per element of a tensor of this shape. Only differences between
  // tensors matter (shard::Unit).
  virtual int64_t element_state_bytes(const std::vector<int64_t>& /*shape*/) const { return 0; }
  // False if the optimizer reads gradients before the update. Gradients can then have neither decay
  // within them nor a ratio (kernels::InnerDecay).
  virtual bool reads_gradients_once() const { return true; }
  // Returns why the optimizer cannot update the parameter, or "".
  virtual std::string problem(const shard::Parameter& /*parameter*/) const { return ""; }
  virtual std::unique_ptr<Method> make(const shard::Fabric& fabric, const Chosen& chosen) const = 0;
};

}  // namespace optim
