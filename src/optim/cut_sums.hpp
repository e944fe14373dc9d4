// Sums over whole tensors: a few doubles per tensor, formed per cut of a unit, added over the cuts along one binary
// tree (neighbours first) and then over the ranks that share the unit, so that the bits do not depend on who owns which
// cut.
#pragma once

#include <cstddef>
#include <vector>

#include "base/tree_sum.hpp"
#include "device/memory.hpp"
#include "kernels/square_sums.hpp"
#include "optim/method.hpp"

namespace optim {

class CutSums : public TensorTotals {
 public:
  // `widths`: numbers per parameter; 0 = none.
  CutSums(const shard::Fabric& fabric, std::vector<int64_t> widths);

  // `cuts`: the pieces of each cut of the unit that this rank owns. `form(piece, sums)` adds to zeroed sums.
  template <class Form>
  void sum_unit(int unit, const std::vector<std::vector<Piece>>& cuts, Form form) {
    if (unit_width_[size_t(unit)] == 0) return;
    auto add = [&](int into, int from) {
      kernels::run(kernels::AddSums{slot(unit, into), slot(unit, into), slot(unit, from)}, fabric_.queue);
    };
    for (const std::vector<Piece>& cut : cuts) {
      device::View partial = slot(unit, tree_.next_slot());
      kernels::run(kernels::AddSums{partial}, fabric_.queue);
      for (const Piece& piece : cut)
        form(piece, partial.slice(offset_[size_t(piece.parameter)], width_[size_t(piece.parameter)]));
      tree_.push(add);
    }
    tree_.finish(add);
  }
  // Adds over the fsdp ranks, in one all-reduce, what each holds a part of. Units with a replicated optimizer are whole
  // on every rank already; replicas hold the same numbers and are never added.
  void exchange();

  device::View of(int parameter) const override;
  // All totals, and where those of a parameter begin among them.
  device::View all() const { return totals_.view(device::DType::f64).slice(0, total_); }
  int64_t place(int parameter) const;

 private:
  device::View slot(int unit, int index) const;

  shard::Fabric fabric_;
  std::vector<int64_t> width_, offset_;            // by parameter; offset within the unit's sums
  std::vector<int64_t> unit_width_, unit_offset_;  // by unit; offset in the totals
  int64_t exchanged_ = 0;                          // leading totals, of units with a sharded optimizer
  int64_t widest_ = 0, total_ = 0;
  device::Buffer totals_, levels_;  // slot 0 of a unit lies in the totals, the others in the levels
  base::TreeSum tree_;
};

}  // namespace optim
