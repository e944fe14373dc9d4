#include "optim/cut_sums.hpp"

#include <algorithm>

namespace optim {

CutSums::CutSums(const shard::Fabric& fabric, std::vector<int64_t> widths)
    : fabric_(fabric),
      width_(std::move(widths)),
      offset_(width_.size()) {
  const auto& units = fabric.layout.units();
  CHECK(width_.size() == fabric.layout.parameters().size());
  unit_width_.resize(units.size()), unit_offset_.resize(units.size());
  int64_t most_cuts = 1;
  for (bool sharded : {true, false}) {
    for (size_t u = 0; u < units.size(); ++u) {
      if (units[u].strategy.optimizer_sharded != sharded) continue;
      for (int p : units[u].parameters) {
        offset_[size_t(p)] = unit_width_[u];
        unit_width_[u] += width_[size_t(p)];
      }
      unit_offset_[u] = total_;
      total_ += unit_width_[u];
      widest_ = std::max(widest_, unit_width_[u]);
      most_cuts = std::max(most_cuts, fabric.layout.owned_cuts(int(u)));
    }
    if (sharded) exchanged_ = total_;
  }
  const int slots = base::TreeSum::slots(most_cuts);
  device::Kind kind = fabric.queue.kind();
  totals_ = device::Buffer(kind, fabric.ledger, "workspace", total_ * size_of(device::DType::f64));
  levels_ = device::Buffer(kind, fabric.ledger, "workspace", (slots - 1) * widest_ * size_of(device::DType::f64));
}

device::View CutSums::slot(int unit, int index) const {
  const int64_t n = unit_width_[size_t(unit)];
  if (index == 0) return totals_.view(device::DType::f64).slice(unit_offset_[size_t(unit)], n);
  return levels_.view(device::DType::f64).slice((index - 1) * widest_, n);
}

void CutSums::exchange() {
  if (exchanged_ > 0) fabric_.mesh.fsdp->all_reduce(totals_.view(device::DType::f64).slice(0, exchanged_), fabric_.queue).wait();
}

int64_t CutSums::place(int parameter) const {
  return unit_offset_[size_t(fabric_.layout.parameters()[size_t(parameter)].unit)] + offset_[size_t(parameter)];
}

device::View CutSums::of(int parameter) const {
  return all().slice(place(parameter), width_[size_t(parameter)]);
}

}  // namespace optim
