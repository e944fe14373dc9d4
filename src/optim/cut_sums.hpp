// SPDX-License-Identifier: Apache-2.0
// Sums over whole tensors, a few doubles per tensor. They are formed per cut of a unit and added
// over the cuts along one binary tree, neighbours first. The ranks that share the unit then add
// their sums. The bits do not depend on which rank owns which cut.
#pragma once

#include <cstddef>
#include <vector>

#include "base/tree_sum.hpp"
#include "device/memory.hpp"
#include "kernels/square_sums.hpp"
#include "optim/method.hpp"

namespace optim {

// Returns the parts of all tensors that this rank owns, by unit and cut.
Pieces owned_pieces(const shard::Fabric& fabric);

class CutSums : public TensorTotals {
 public:
  // `widths`: numbers per parameter; 0 = none.
  CutSums(const shard::Fabric& fabric, std::vector<int64_t> widths);

  // `form(piece, sums)` queues the op that adds a piece to zeroed sums. `run()` runs the queued ops
  // of one cut of a group's units. No two of these pieces share their sums.
  template <class Form, class Run>
  void sum(const Pieces& pieces, Form form, Run run) {
    for (const Group& group : groups_) {
      auto add = [&](int into, int from) {
        kernels::run(kernels::AddSums{slot(group, into), slot(group, into), slot(group, from)},
                     fabric_.queue);
      };
      for (int64_t cut = 0; cut < group.cuts; ++cut) {
        const device::View partial = slot(group, tree_.next_slot());
        kernels::run(kernels::AddSums{partial}, fabric_.queue);
        for (int unit : group.units)
          for (const Piece& piece : pieces[size_t(unit)][size_t(cut)])
            form(piece, partial.slice(offset(piece.parameter) - group.begin,
                                      width_[size_t(piece.parameter)]));
        run();
        tree_.push(add);
      }
      tree_.finish(add);
    }
  }
  // Adds the totals of units with a sharded optimizer over the fsdp ranks, in one all-reduce. Units
  // with a replicated optimizer are whole on every rank. Replicas hold the same numbers, which are
  // never added.
  void exchange();

  device::View of(int parameter) const override;
  // All totals, and the index of a parameter's first one.
  device::View all() const { return totals_.view(device::DType::f64).slice(0, total_); }
  int64_t offset(int parameter) const { return offset_[size_t(parameter)]; }

 private:
  // Units that are summed together. They have the same number of cuts, and all or none have a
  // sharded optimizer.
  struct Group {
    std::vector<int> units;        // units without sums are left out
    int64_t cuts = 1;              // owned by this rank, of each unit
    int64_t begin = 0, width = 0;  // in the totals
  };
  device::View slot(const Group& group, int index) const;

  shard::Fabric fabric_;
  std::vector<int64_t> width_, offset_;  // by parameter; offset in the totals
  std::vector<Group> groups_;
  int64_t exchanged_ = 0;  // leading totals: units with a sharded optimizer
  int64_t widest_ = 0, total_ = 0;
  // slot 0 of a group is in the totals, the others are in the levels
  device::Buffer totals_, levels_;
  base::TreeSum tree_;
};

}  // namespace optim
