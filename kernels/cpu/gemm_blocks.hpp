// SPDX-License-Identifier: Apache-2.0
// Cuts of a product into blocks that each one thread computes. k is never cut.
#pragma once

#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/cpu/gemm_key.hpp"

namespace kernels {

// From this many rows per thread on, blocks of whole rows are as fast as the library's own division
// of a product, or faster: gradients of weights and products with GELU by 10 to 20 %, in f32 and
// bf16 (S/16 in bf16: 1.5 % of a step).
constexpr int64_t kRowsWorthCutting = 192;

// True if a product runs in blocks of ours: where bits must not depend on threads, where more is
// done to a block, and where every thread has enough rows.
bool runs_in_blocks(const GemmKey& key);

// Rows and columns of a block. They depend on the shape alone where the order is fixed, else also
// on the number of threads.
struct BlockSize {
  int64_t rows, columns;
};
BlockSize block_size(const GemmKey& key);

// Cuts a length into equal blocks of about `target`, the last one shorter.
struct Cut {
  static constexpr int64_t kUnit =
      16;  // blocks are multiples of it: floats of a cache line, and of an AVX-512 register
  int64_t length, block;
  Cut(int64_t length_, int64_t target)
      : length(length_),
        block(base::round_up(base::ceil_div(length_, base::ceil_div(length_, target)), kUnit)) {}
  int64_t count() const { return base::ceil_div(length, block); }
  int64_t size(int64_t i) const { return std::min(block, length - i * block); }
  bool last(int64_t i) const { return size(i) != block; }
};

}  // namespace kernels
