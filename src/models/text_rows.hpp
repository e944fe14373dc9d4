// SPDX-License-Identifier: Apache-2.0
// Which rows of the text a pass computes. Positions that nobody looks at and that carry no loss
// need not be computed: of an example that is predicted autoregressively, those after its last
// label; in the last layer, which hands no keys on, those of every example. The rows of a
// micro-batch then lie packed, one example after the other, so nothing else changes.
//
// A slice has a multiple of `unit` rows (more positions than needed are computed), so there are at
// most 32 sets of shapes, and the engine prepares the products of all before the first step.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/layers.hpp"

namespace models {

using device::View;

struct TextRows {
  int64_t length = 0;  // of a whole text
  // [batch + 1]: example b has rows [offsets[b], offsets[b + 1]), its first positions
  std::vector<int32_t> offsets;
  std::vector<int64_t> cuts;  // [slices + 1]
  View placed{};              // the offsets where ops read them, until the pass is over

  // At least counts[b] positions of example b. What is added depends on the examples of its slice
  // alone.
  void assign(const std::vector<int64_t>& counts, int64_t slices, int64_t length);
  void assign_all(int64_t batch, int64_t slices, int64_t length);

  static int64_t unit(int64_t examples, int64_t length);  // of a slice of so many examples
  // How many numbers of rows a slice can have, and rows with the set-th of them in all slices; 0:
  // all.
  static int64_t sets(int64_t examples, int64_t length);
  void assign_set(int64_t set, int64_t batch, int64_t slices, int64_t length);

  int64_t count() const { return cuts.back(); }
  int32_t rows_of(size_t b) const { return offsets[b + 1] - offsets[b]; }
  bool whole() const { return count() == int64_t(offsets.size() - 1) * length; }
  nn::Rows rows() const { return whole() ? nn::Rows(count()) : nn::Rows(cuts); }
  void place(nn::Context& ctx) { placed = ctx.table(true, offsets); }
  nn::Sequences sequences() const;
  // For each row its number among all positions, or among the rows of `other`, which has at least
  // these.
  void index_in_text(std::vector<int32_t>& index) const;
  void index_in(const TextRows& other, std::vector<int32_t>& index) const;
};

}  // namespace models
