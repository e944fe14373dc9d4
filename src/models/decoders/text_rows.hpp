// SPDX-License-Identifier: Apache-2.0
// The rows of the text that a pass computes. A position is left out if it carries no loss and no
// computed position depends on it. In an example that is predicted autoregressively, these are the
// positions after its last label. The last layer leaves such positions out in every example,
// because no layer uses its keys. The rows of a micro-batch are packed, one example after the
// other.
//
// A slice has a multiple of `unit` rows, so some positions are computed without need. There are
// then at most 32 sets of shapes, and the engine prepares the products of all sets before the first
// step.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/layers.hpp"

namespace models {

using device::View;

struct TextRows {
  int64_t length = 0;  // positions of a whole text
  // [batch + 1]: example b has rows [offsets[b], offsets[b + 1]), its first positions
  std::vector<int32_t> offsets;
  std::vector<int64_t> cuts;  // [slices + 1]: first row of each slice
  View placed{};              // copy of the offsets for ops, until the end of the pass

  // Selects at least counts[b] positions of example b. The number of further positions depends only
  // on the examples of the same slice.
  void assign(const std::vector<int64_t>& counts, int64_t slices, int64_t length);
  void assign_all(int64_t batch, int64_t slices, int64_t length);

  // The number of rows of a slice with that many examples is a multiple of this.
  static int64_t unit(int64_t examples, int64_t length);
  // Returns how many different numbers of rows such a slice can have.
  static int64_t sets(int64_t examples, int64_t length);
  // Selects rows with the set-th of these numbers in all slices; set 0 has all rows.
  void assign_set(int64_t set, int64_t batch, int64_t slices, int64_t length);

  int64_t count() const { return cuts.back(); }
  int32_t rows_of(size_t b) const { return offsets[b + 1] - offsets[b]; }
  bool whole() const { return count() == int64_t(offsets.size() - 1) * length; }
  nn::Rows rows() const { return whole() ? nn::Rows(count()) : nn::Rows(cuts); }
  void place(nn::Context& ctx) { placed = ctx.table(true, offsets); }
  nn::Sequences sequences() const;
  // Write, for each row, its number among all positions, or among the rows of `other`, which must
  // include these rows.
  void index_in_text(std::vector<int32_t>& index) const;
  void index_in(const TextRows& other, std::vector<int32_t>& index) const;
};

}  // namespace models
