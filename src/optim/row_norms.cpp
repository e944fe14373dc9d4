// SPDX-License-Identifier: Apache-2.0
#include "optim/row_norms.hpp"

#include <algorithm>

namespace optim {

RowNorms::RowNorms(const shard::Fabric& fabric) : fabric_(fabric) {
  for (const shard::Parameter& p : fabric.layout.parameters()) {
    const bool asks = p.unit_rows && fabric.layout.units()[size_t(p.unit)].trained();
    CHECK(!asks || p.shape.size() == 2, "{}: only matrices have unit rows", p.path);
    rows_.push_back(asks ? p.shape[0] : 0);
  }
  if (std::any_of(rows_.begin(), rows_.end(), [](int64_t n) { return n > 0; }))
    sums_ = std::make_unique<CutSums>(fabric, rows_);
}

int64_t RowNorms::width(int parameter) const {
  return fabric_.layout.parameters()[size_t(parameter)].shape[1];
}

void RowNorms::normalise(const Pieces& pieces,
                         const std::function<device::View(const Piece&)>& weights,
                         device::View decided) {
  if (!sums_) return;
  sums_->sum(
      pieces,
      [&](const Piece& piece, device::View sums) {
        if (sums.count > 0)
          squares_.add({sums, weights(piece), piece.begin, width(piece.parameter)});
      },
      [&] { squares_.run(fabric_.queue); });
  sums_->exchange();
  for (const auto& unit : pieces)
    for (const auto& cut : unit)
      for (const Piece& piece : cut)
        if (const device::View sums = sums_->of(piece.parameter); sums.count > 0)
          divisions_.add({.x = weights(piece),
                          .sums = sums,
                          .begin = piece.begin,
                          .width = width(piece.parameter),
                          .decided = decided});
  divisions_.run(fabric_.queue);
}

}  // namespace optim
