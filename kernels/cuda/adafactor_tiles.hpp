// SPDX-License-Identifier: Apache-2.0
// Cuts of a factored tensor into tiles, for CUDA's sums of squares over x and over y. A row is all
// that belongs to one (outer, x); its width is middle * y * inner. A tile is a block of rows of one
// outer index by a strip of columns.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/narrow.hpp"
#include "kernels/adafactor.hpp"

namespace kernels {

struct AdafactorTiles {
  static constexpr int kRows = 64;      // of a tile
  static constexpr int kColumns = 128;  // of a strip; each lane of a warp has four

  int64_t x, middle, group, width;  // group = y * inner: the columns of one middle index
  int64_t first_row, rows;          // rows that the view touches
  int64_t blocks_per_outer, first_block, blocks;
  // Strips in a row, columns that add to one sum over y in a tile, and such spans in a row.
  int64_t strips, span, spans;

  AdafactorTiles() = default;
  // Cuts elements [begin, begin + count) of the tensor, count > 0.
  AdafactorTiles(const Factored& s, int64_t begin, int64_t count)
      : x(s.x), middle(s.middle), group(s.y * s.inner), width(middle * group) {
    first_row = begin / width;
    rows = (begin + count - 1) / width - first_row + 1;
    blocks_per_outer = base::ceil_div(x, kRows);
    first_block = block_of(first_row);
    blocks = block_of(first_row + rows - 1) - first_block + 1;
    strips = base::ceil_div(width, kColumns);
    span = std::min<int64_t>(group, kColumns);
    spans = width / span;
  }
  // True if tiles can be used; other tensors are read twice. Spans must be whole packs of four, and
  // strips must be whole spans. The lanes of a warp can then add a span's sum in halves.
  static bool fit(const Factored& s) {
    int64_t g = s.y;
    return s.inner == 1 && g % 4 == 0 && (g % kColumns == 0 || (g < kColumns && kColumns % g == 0));
  }
  int64_t block_of(int64_t row) const { return row / x * blocks_per_outer + row % x / kRows; }
  constexpr int64_t first_row_of(int64_t block) const {
    return block / blocks_per_outer * x + block % blocks_per_outer * kRows;
  }
  constexpr int64_t end_row_of(int64_t block) const {
    return std::min(first_row_of(block) + kRows, (block / blocks_per_outer + 1) * x);
  }

  // Places in a scratch of doubles. It holds sums over the rows of each tile [block][width], sums
  // over the columns of each span [row][spans], and sums of tiles.
  constexpr int64_t columns() const { return 0; }
  constexpr int64_t pieces() const { return blocks * width; }
  constexpr int64_t totals() const { return pieces() + rows * spans; }
  int64_t doubles() const { return totals() + blocks * strips; }
};

}  // namespace kernels
