// SPDX-License-Identifier: Apache-2.0
#include "optim/cut_sums.hpp"

#include <algorithm>
#include <utility>

namespace optim {

Pieces owned_pieces(const shard::Fabric& fabric) {
  const shard::Layout& layout = fabric.layout;
  Pieces out;
  for (int u = 0; u < int(layout.units().size()); ++u) {
    auto& cuts = out.emplace_back();
    const int64_t length = layout.units()[size_t(u)].cut_length(),
                  first = layout.owned_begin(u, fabric.mesh.fsdp_index);
    for (int64_t c = 0; c < layout.owned_cuts(u); ++c) {
      auto& cut = cuts.emplace_back();
      for (const shard::Segment& s : layout.segments(u, first + c * length, length))
        cut.push_back({u, s.parameter, s.begin, s.end, c * length + s.offset});
    }
  }
  return out;
}

CutSums::CutSums(const shard::Fabric& fabric, std::vector<int64_t> widths)
    : fabric_(fabric), width_(std::move(widths)), offset_(width_.size()) {
  const auto& units = fabric.layout.units();
  CHECK(width_.size() == fabric.layout.parameters().size());
  int64_t most_cuts = 1;
  for (bool sharded : {true, false}) {
    bool begins = true;
    for (size_t u = 0; u < units.size(); ++u) {
      if (units[u].strategy.optimizer_sharded != sharded) continue;
      const int64_t before = total_;
      for (int p : units[u].parameters) {
        offset_[size_t(p)] = total_;
        total_ += width_[size_t(p)];
      }
      if (total_ == before) continue;
      // On CPUs each unit is a group, whose sums stay in cache. On GPUs one launch serves many
      // units.
      if (std::exchange(begins, fabric.queue.device() != device::Kind::cuda))
        groups_.push_back({.units = {}, .cuts = fabric.layout.owned_cuts(int(u)), .begin = before});
      Group& group = groups_.back();
      group.units.push_back(int(u));
      group.width = total_ - group.begin;
      widest_ = std::max(widest_, group.width);
      most_cuts = std::max(most_cuts, group.cuts);
    }
    if (sharded) exchanged_ = total_;
  }
  const int slots = base::TreeSum::slots(most_cuts);
  device::Kind kind = fabric.queue.kind();
  totals_ = device::Buffer(kind, fabric.ledger, "workspace", total_ * size_of(device::DType::f64));
  levels_ = device::Buffer(kind, fabric.ledger, "workspace",
                           (slots - 1) * widest_ * size_of(device::DType::f64));
}

device::View CutSums::slot(const Group& group, int index) const {
  if (index == 0) return all().slice(group.begin, group.width);
  return levels_.view(device::DType::f64).slice((index - 1) * widest_, group.width);
}

void CutSums::exchange() {
  if (exchanged_ > 0)
    fabric_.mesh.fsdp->all_reduce(all().slice(0, exchanged_), fabric_.queue).wait();
}

device::View CutSums::of(int parameter) const {
  return all().slice(offset(parameter), width_[size_t(parameter)]);
}

}  // namespace optim
