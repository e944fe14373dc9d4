// SPDX-License-Identifier: Apache-2.0
// Tensors whose rows are brought to unit length after each applied update (shard::Parameter's
// unit_rows, ssl.md 3.5). Parts of a row may be on several ranks, so their squares are added like
// the other sums over tensors, and the bits do not depend on who owns what.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/unit_rows.hpp"
#include "optim/cut_sums.hpp"

namespace optim {

class RowNorms {
 public:
  explicit RowNorms(const shard::Fabric& fabric);

  // Returns the number of rows of a tensor that asks for unit length, 0 for other tensors.
  int64_t rows(int parameter) const { return rows_[size_t(parameter)]; }
  // Divides the rows of the trained tensors that ask for it. `decided`: Optimizer::decision().
  void normalise(const Pieces& pieces, const std::function<device::View(const Piece&)>& weights,
                 device::View decided);

 private:
  int64_t width(int parameter) const;

  shard::Fabric fabric_;
  std::vector<int64_t> rows_;      // by parameter
  std::unique_ptr<CutSums> sums_;  // of each row; null if no tensor asks for it
  kernels::OpList<kernels::RowSquares> squares_;
  kernels::OpList<kernels::UnitRows> divisions_;
};

}  // namespace optim
