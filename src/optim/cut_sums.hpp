// SPDX-License-Identifier: Apache-2.0
// Sums over whole tensors: a few doubles per tensor, formed per cut of a unit, added over the cuts
// along one binary tree (neighbours first) and then over the ranks that share the unit, so that the
// bits do not depend on who owns which cut.
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

  // `form(piece, sums)` asks for what a piece adds to zeroed sums, `run()` runs what was asked for:
  // the pieces of one cut of a group's units, no two of which share their sums.
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
            form(piece, partial.slice(place(piece.parameter) - group.begin,
                                      width_[size_t(piece.parameter)]));
        run();
        tree_.push(add);
      }
      tree_.finish(add);
    }
  }
  // Adds over the fsdp ranks, in one all-reduce, what each holds a part of. Units with a replicated
  // optimizer are whole on every rank already; replicas hold the same numbers and are never added.
  void exchange();

  device::View of(int parameter) const override;
  // All totals, and where those of a parameter begin among them.
  device::View all() const { return totals_.view(device::DType::f64).slice(0, total_); }
  int64_t place(int parameter) const { return place_[size_t(parameter)]; }

 private:
  // Units that are summed together: all with a sharded optimizer, or all without, and as many cuts
  // each.
  struct Group {
    std::vector<int> units;        // that have sums
    int64_t cuts = 1;              // that this rank owns of each
    int64_t begin = 0, width = 0;  // in the totals
  };
  device::View slot(const Group& group, int index) const;

  shard::Fabric fabric_;
  std::vector<int64_t> width_, place_;  // by parameter; place in the totals
  std::vector<Group> groups_;
  int64_t exchanged_ = 0;  // leading totals, of units with a sharded optimizer
  int64_t widest_ = 0, total_ = 0;
  // slot 0 of a group lies in the totals, the others in the levels
  device::Buffer totals_, levels_;
  base::TreeSum tree_;
};

}  // namespace optim
