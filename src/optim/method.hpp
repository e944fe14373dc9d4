// SPDX-License-Identifier: Apache-2.0
// One optimizer = one Method: its state, what it must know of whole tensors before an update, and
// its rule for elements. The engine does everything else (norms, clipping, learning rate, decay,
// schedule, exchange over ranks), once for all.
//
// A Method asks for ops tensor by tensor (OpList), and the engine says when they run: on GPUs many
// tensors in one launch.
//
// To add an optimizer: a file with its options (keys of [optimizer]) and its Method, and a row in
// registry.cpp.
#pragma once

#include <memory>
#include <vector>

#include "config/table.hpp"
#include "kernels/apply_update.hpp"
#include "kernels/square_sums.hpp"
#include "shard/stores.hpp"

namespace optim {

// The part of one tensor that lies in one cut of a unit and that this rank owns. Sums are formed
// piece by piece; of a tensor, no cut holds two.
struct Piece {
  int unit = 0, parameter = 0;
  int64_t begin = 0, end = 0;  // elements of the logical, flattened tensor
  int64_t offset = 0;          // of `begin` in this rank's owned range of the unit
  int64_t count() const { return end - begin; }
};
using Pieces = std::vector<std::vector<std::vector<Piece>>>;  // by unit, by owned cut

// The totals over a tensor: doubles, the same on every rank, for ops to read.
class TensorTotals {
 public:
  virtual ~TensorTotals() = default;
  virtual device::View of(int parameter) const = 0;
};

struct StepInfo {
  int64_t step = 1;      // the update to make: the first is 1
  kernels::Clip clip{};  // decided in memory: whether there is an update at all is part of it
};

class Method {
 public:
  virtual ~Method() = default;

  // How many sums over the whole tensor are needed before an update. The first is always the sum of
  // squares.
  virtual int64_t sums(int /*parameter*/) const { return 1; }
  // Asks for a piece's part of the sums, which were zeroed for its cut. Default: the sum of
  // squares.
  virtual void sum(const Piece& /*piece*/, device::View gradient, device::View sums) {
    squares_.add({sums, gradient});
  }
  // Runs what sum, measure and update have asked for since.
  virtual void run() { squares_.run(fabric_.queue); }
  virtual void begin_step(const StepInfo& /*info*/, const TensorTotals& /*totals*/) {}

  // Methods that need further sums before an update, as a norm of the weights or of their own
  // direction: one more pass over weights and gradients, after begin_step. Returns the number of
  // sums over the whole tensor; if no tensor has any there is no such pass.
  virtual int64_t measures(int /*parameter*/) const { return 0; }
  // Asks for a piece's part of these sums, which were zeroed for its cut. Not called for tensors
  // without any.
  virtual void measure(const Piece& /*piece*/, device::View /*weights*/, device::View /*gradient*/,
                       device::View /*sums*/) {}
  virtual void measured(const TensorTotals& /*totals*/) {}

  // Asks for the update of the weights of a piece and of the state that belongs to them.
  virtual void update(const Piece& piece, const kernels::Update& update) = 0;

  // Everything the next update depends on besides weights and step number, in the same order on
  // every rank.
  virtual void list_state(std::vector<shard::TensorSlice>& out) = 0;

 protected:
  explicit Method(shard::Fabric fabric) : fabric_(fabric) {}
  bool trainable(int parameter) const {
    return fabric_.layout.units()[size_t(fabric_.layout.parameters()[size_t(parameter)].unit)]
        .trained();
  }
  shard::Fabric fabric_;

 private:
  kernels::OpList<kernels::SquareSums> squares_;
};

// The keys of one kind of optimizer, and how to make it.
struct MethodOptions : config::Table::Variant {
  // Bytes of state per element of a tensor of this shape; only differences between tensors matter
  // (shard::Unit).
  virtual int64_t element_state_bytes(const std::vector<int64_t>& /*shape*/) const { return 0; }
  virtual std::unique_ptr<Method> make(const shard::Fabric& fabric) const = 0;
};

}  // namespace optim
