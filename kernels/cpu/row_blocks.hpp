// SPDX-License-Identifier: Apache-2.0
// Blocks of rows for sums over rows. Each block is summed row after row, and the sums of blocks are
// added in order. The number of rows alone fixes the blocks, and with them the order of the sum.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kernels {

struct RowBlocks {
  static constexpr int64_t kLeastRows = 64, kMostBlocks = 64;
  int64_t rows, block;
  explicit RowBlocks(int64_t rows_)
      : rows(rows_), block(std::max(kLeastRows, (rows_ + kMostBlocks - 1) / kMostBlocks)) {}
  int64_t count() const { return (rows + block - 1) / block; }
  int64_t begin(int64_t b) const { return b * block; }
  int64_t end(int64_t b) const { return std::min(rows, begin(b) + block); }
};

}  // namespace kernels
