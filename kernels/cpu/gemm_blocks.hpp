// SPDX-License-Identifier: Apache-2.0
// Cuts of a product into blocks, each computed by one thread. k is never cut.
#pragma once

#include <algorithm>
#include <vector>

#include "base/narrow.hpp"
#include "kernels/cpu/gemm_key.hpp"

namespace kernels {

// From this many rows per thread on, blocks of whole rows are at least as fast as the library's own
// division of a product. Gradients of weights and products with GELU are 10 to 20 % faster, in f32
// and bf16 (1.5 % of a step of S/16 in bf16).
constexpr int64_t kRowsWorthCutting = 192;

// True if a product is cut into blocks here, not by the library. That is needed if bits must not
// depend on threads, or if a block needs other work; it pays if every thread has enough rows.
bool runs_in_blocks(const GemmKey& key);

// Rows and columns of a block. With a fixed order they depend on the shape alone, else also on the
// number of threads. Where rows are alike, blocks have all columns.
struct BlockSize {
  int64_t rows, columns;
};
BlockSize block_size(const GemmKey& key);

// Rows [begin, begin + rows) of a product. `room`: with the rows of padding.
struct RowBlock {
  int64_t begin, rows, room;
  bool operator==(const RowBlock&) const = default;
};
// Cuts the rows of a product. Where rows are alike, the room of a block is a multiple of
// kAlikeUnit; else there is no padding, and only the last block may be smaller than the first.
std::vector<RowBlock> cut_rows(const GemmKey& key);

// Cuts a length into blocks. The last one may be shorter.
struct Cut {
  // Blocks are multiples of this many floats: a cache line, and an AVX-512 register.
  static constexpr int64_t kUnit = 16;
  int64_t length, block;
  // Returns equal blocks of about `target`.
  static Cut equal(int64_t length, int64_t target, int64_t unit = kUnit) {
    return {length, base::round_up(base::ceil_div(length, base::ceil_div(length, target)), unit)};
  }
  int64_t count() const { return base::ceil_div(length, block); }
  int64_t size(int64_t i) const { return std::min(block, length - i * block); }
  bool last(int64_t i) const { return size(i) != block; }
};

}  // namespace kernels
