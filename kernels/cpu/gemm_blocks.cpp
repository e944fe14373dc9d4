// SPDX-License-Identifier: Apache-2.0
// Sizes of the blocks of oneDNN's products, by measurement and by the cache.
#include "kernels/cpu/gemm_blocks.hpp"

#include "kernels/cpu/instructions.hpp"
#include "kernels/gemm.hpp"

namespace kernels {
namespace {

// Blocks of whole rows are best. The library has its fastest kernels for a c without gaps, and
// prepares b once per block. If c has gaps, oneDNN 2.6 converts bf16 in an older kernel, at 280 to
// 310 instead of 400 GFLOP/s. At most this many rows of c stay in the second-level cache for the
// work on a finished block.
constexpr int64_t kRowsInSecondCache = 224;
// Without AVX-512 the library packs b again in each call, so fewer and larger blocks save 7 % of a
// step of S/16 (f32, AVX2). Where blocks need no other work, the library's own division saves 4 %.
// At most this many rows of c stay in the third-level cache.
constexpr int64_t kRowsInThirdCache = 448;
// Thinner blocks of whole rows would leave too little work per block, so columns are cut instead.
// No measurement of this limit is recorded.
constexpr int64_t kLeastWholeRows = 64;

// Blocks of some of the columns. Large blocks run as fast as the whole product. Smaller ones give
// work to more threads, until a block's work no longer hides the cost of starting it. No
// measurement of these limits is recorded; the bits of products with a fixed order depend on them.
constexpr int64_t kMostRows = 128, kMostColumns = 768;
constexpr int64_t kLeastRows = 32, kLeastColumns = 96;  // blocks are not halved below about these
constexpr int64_t kEnoughBlocks = 12;                   // blocks are halved up to this number
constexpr int64_t kWorthHalving = int64_t{2} << 20;     // multiply-adds; smaller blocks stay whole

bool packs_in_each_call() { return !onednn_has_avx512(); }

// Row blocks of a need no vector alignment unless a is stored transposed. Small units keep blocks
// equal, so no thread idles.
int64_t unit_of_rows(const GemmKey& key) {
  constexpr int64_t kRows = 4;
  return key.fixed_order || key.trans_a ? Cut::kUnit : kRows;
}

}  // namespace

bool runs_in_blocks(const GemmKey& key) {
  return key.rows_alike || key.fixed_order || key.gelu || key.gelu_of || key.widen ||
         (key.m >= kRowsWorthCutting * key.threads && !packs_in_each_call());
}

BlockSize block_size(const GemmKey& key) {
  if (!runs_in_blocks(key)) return {key.m, key.n};
  if (key.rows_alike) return {kAlikeRows, key.n};
  if (!key.fixed_order) {
    // Every thread gets the same number of blocks.
    const int64_t most = packs_in_each_call() ? kRowsInThirdCache : kRowsInSecondCache;
    const int64_t rows =
        base::ceil_div(key.m, base::round_up(base::ceil_div(key.m, most), key.threads));
    if (rows >= kLeastWholeRows) return {rows, key.n};
  }
  int64_t rows = kMostRows, columns = kMostColumns;
  auto few = [&] {
    const int64_t m = std::min(rows, key.m), n = std::min(columns, key.n);
    return base::ceil_div(key.m, m) * base::ceil_div(key.n, n) < kEnoughBlocks &&
           m * n * key.k > kWorthHalving;
  };
  while (columns > kLeastColumns && few()) columns /= 2;
  while (rows > kLeastRows && few()) rows /= 2;
  return {rows, columns};
}

std::vector<RowBlock> cut_rows(const GemmKey& key) {
  std::vector<RowBlock> out;
  auto add = [&](int64_t room) {
    const int64_t begin = out.empty() ? 0 : out.back().begin + out.back().room;
    if (begin < key.m) out.push_back({begin, std::min(room, key.m - begin), room});
  };
  if (!key.rows_alike) {
    const Cut cut = Cut::equal(key.m, block_size(key).rows, unit_of_rows(key));
    for (int64_t i = 0; i < cut.count(); ++i) add(cut.size(i));
    return out;
  }
  const int64_t units = base::ceil_div(key.m, kAlikeUnit), whole = kAlikeRows / kAlikeUnit,
                threads = key.threads, left = units % (whole * threads);
  for (int64_t i = 0; i < units / (whole * threads) * threads; ++i) add(kAlikeRows);
  // The threads share the units that are left.
  for (int64_t i = 0; i < std::min(left, threads); ++i)
    add((left / threads + (i < left % threads)) * kAlikeUnit);
  return out;
}

}  // namespace kernels
