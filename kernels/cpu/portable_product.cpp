// SPDX-License-Identifier: Apache-2.0
// Blocks, panels and threads of our own products.
#include "kernels/cpu/portable_product.hpp"

#include <omp.h>

#include <algorithm>
#include <utility>

#include "base/narrow.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

// A thread's block has at most this many rows and columns, so that its sums and its rows stay in a
// second-level cache of 512 KiB. Blocks are halved until each thread has a few.
constexpr int64_t kBlockRows = 120, kBlockColumns = 512, kBlocksOfThread = 4;
// At most this many bytes of packed columns exist at a time, if the sums are in memory anyway. Few
// sums stay in a cache, so the columns can, too. Then k is long, as in gradients of weights, and
// blocks have more rows, so that a line of the rows' operand is read in fewer parts.
constexpr int64_t kPackedBytes = int64_t{16} << 20;
constexpr int64_t kFewSums = int64_t{256} << 10, kPackedBesideFew = int64_t{256} << 10;  // bytes
constexpr int64_t kBlockRowsOfFew = 264;
// More packed bytes than these would leave the second-level cache before all rows have used them.
// Then each thread packs the columns of one block for itself, if the block takes no more.
constexpr int64_t kPackedOfThread = int64_t{1} << 20;
// Panels that are packed together, so that whole lines of a cache are read.
constexpr int64_t kPanelsTogether = 4;
// With at most this many rows, columns are multiplied where they are: packing would cost more.
constexpr int64_t kDirectRows = 96;

// Packed columns from `column` and from the k `begin` on. Chains follow each other, and each has
// all `width` columns.
struct PackedColumns {
  float* data;
  int64_t column, width, begin, end;
  float* at(int64_t k, int64_t c) const {
    return data + (k - begin) * width + (c - column) * std::min(kChain, end - k);
  }
};

// One run of a product. There are many members because the sizes of blocks and of buffers are
// derived once, and the threads read them.
class PortableRun {
 public:
  PortableRun(const PortableProduct& p, const PortableOperands& operands, const VectorTable& table,
              device::Queue& queue)
      : p_(p), operands_(operands), loops_(table.product) {
    cut_blocks(queue.threads());
    threads_ = threads_for(queue, p.m * p.n * p.k, blocks_);
    depth_ = p.k;
    const int64_t most = has_few_sums() ? kPackedBesideFew : kPackedBytes;
    if (p.c && padded_n_ * p.k * 4 > most)
      depth_ = std::max(int64_t{1}, most / (padded_n_ * 4 * kChain)) * kChain;
    packs_alone_ = padded_n_ * p.k * 4 > kPackedOfThread && columns_ * p.k * 4 <= kPackedOfThread &&
                   blocks_ / row_blocks_ >= (threads_ == 1 ? 1 : kBlocksOfThread * threads_);
    // A worker has a copy of its rows, one tile, the sums of a block if they need scratch, and the
    // columns that it packs alone.
    sums_ = p.c ? 0 : rows_ * columns_;
    tile_ = rows_ * kChain + sums_;
    panel_ = tile_ + loops_.rows * std::max(loops_.columns, kChain);
    columns_alone_ = panel_ + loops_.columns * kChain;
    own_ = columns_alone_ + (packs_alone_ ? columns_ * p.k : 0);
    const int64_t packed = packs_alone_ ? 0 : padded_n_ * depth_;
    packed_ = static_cast<float*>(queue.scratch(size_t(packed + threads_ * own_) * sizeof(float)));
    workers_ = packed_ + packed;
  }

  void run() {
    const bool direct = p_.m <= kDirectRows && is_direct();
    if (packs_alone_ && !direct) return run_alone();
#pragma omp parallel num_threads(threads_)
    for (int64_t begin = 0; begin < p_.k; begin += depth_) {
      const PackedColumns packed{direct ? nullptr : packed_, 0, padded_n_, begin,
                                 std::min(p_.k, begin + depth_)};
      if (!direct) pack(packed);
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < blocks_; ++i)
        run_block(i, packed, workers_ + omp_get_thread_num() * own_);
    }
  }

 private:
  bool has_few_sums() const { return p_.m * p_.n * 4 <= kFewSums; }
  void cut_blocks(int threads) {
    const int64_t row_tiles = base::ceil_div(p_.m, loops_.rows),
                  panels = base::ceil_div(p_.n, loops_.columns);
    int64_t rows =
                std::min(row_tiles, (has_few_sums() ? kBlockRowsOfFew : kBlockRows) / loops_.rows),
            columns = std::min(panels, kBlockColumns / loops_.columns);
    const int64_t enough = threads == 1 ? 1 : kBlocksOfThread * threads;
    auto few = [&] {
      return base::ceil_div(row_tiles, rows) * base::ceil_div(panels, columns) < enough;
    };
    while (few() && columns > 4) columns = base::ceil_div(columns, int64_t{2});
    while (few() && rows > 2) rows = base::ceil_div(rows, int64_t{2});
    // Blocks are equal, so that no thread gets a small rest.
    auto equal = [](int64_t all, int64_t most) {
      return base::ceil_div(all, base::ceil_div(all, most));
    };
    rows_ = equal(row_tiles, rows) * loops_.rows;
    columns_ = equal(panels, columns) * loops_.columns;
    row_blocks_ = base::ceil_div(p_.m, rows_);
    blocks_ = row_blocks_ * base::ceil_div(p_.n, columns_);
    padded_n_ = panels * loops_.columns;
  }

  bool is_direct() const {
    int64_t step;
    return operands_.columns({0, 1, 0, 1}, step) != nullptr;
  }

  // Each thread packs the columns of a block, and multiplies all rows with them while they are in
  // its cache.
  void run_alone() const {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads_)
    for (int64_t column_block = 0; column_block < blocks_ / row_blocks_; ++column_block) {
      float* const own = workers_ + omp_get_thread_num() * own_;
      const PackedColumns packed{own + columns_alone_, column_block * columns_, columns_, 0, p_.k};
      for (int64_t i = 0; i < parts_of(packed); ++i) pack_part(packed, i);
      for (int64_t i = 0; i < row_blocks_; ++i)
        run_block(column_block * row_blocks_ + i, packed, own);
    }
  }

  // The team packs the columns of some k.
  void pack(const PackedColumns& packed) const {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < parts_of(packed); ++i) pack_part(packed, i);
  }
  // A part is a chain of some panels.
  int64_t groups_of(const PackedColumns& packed) const {
    return base::ceil_div(std::min(packed.width, p_.n - packed.column),
                          kPanelsTogether * loops_.columns);
  }
  int64_t parts_of(const PackedColumns& packed) const {
    return groups_of(packed) * base::ceil_div(packed.end - packed.begin, kChain);
  }
  void pack_part(const PackedColumns& packed, int64_t i) const {
    const int64_t width = kPanelsTogether * loops_.columns, groups = groups_of(packed),
                  k = packed.begin + i / groups * kChain,
                  column = packed.column + i % groups * width,
                  end = std::min(p_.n, packed.column + packed.width);
    operands_.pack_columns(
        packed.at(k, column), loops_.columns,
        {column, std::min(width, end - column), k, std::min(kChain, packed.end - k)});
  }

  // Without packed columns, the block reads them where they are.
  void run_block(int64_t i, const PackedColumns& packed, float* own) const {
    const int64_t row = i % row_blocks_ * rows_, column = i / row_blocks_ * columns_;
    const ProductBlock block{row, std::min(rows_, p_.m - row), column,
                             std::min(columns_, p_.n - column)};
    float* const sums = p_.c ? p_.c + row * p_.ldc + column : own + rows_ * kChain;
    const int64_t stride = p_.c ? p_.ldc : columns_;
    for (int64_t k = packed.begin; k < packed.end; k += kChain) {
      const int64_t length = std::min(kChain, packed.end - k);
      const OperandRows rows = operands_.rows({row, block.rows, k, length}, own);
      float* const tile = own + tile_;
      const OperandRows last = last_rows(rows, block.rows, length, tile);
      for (int64_t c = 0; c < block.columns; c += loops_.columns) {
        int64_t b_step = loops_.columns;
        const int64_t columns = std::min(loops_.columns, block.columns - c);
        const float* b =
            packed.data ? packed.at(k, column + c)
                        : direct_columns({column + c, columns, k, length}, b_step, own + panel_);
        for (int64_t r = 0; r < block.rows; r += loops_.rows) {
          const bool whole = block.rows - r >= loops_.rows;
          const OperandRows& from = whole ? rows : last;
          run_tile({.c = sums + r * stride + c,
                    .a = whole ? rows.a + r * rows.row_step : last.a,
                    .b = b,
                    .stride = stride,
                    .row_step = from.row_step,
                    .step = from.step,
                    .b_step = b_step,
                    .length = length,
                    .rows = tile_rows(block.rows - r),
                    .ahead = r > 0         ? 0
                             : packed.data ? loops_.columns * length
                                           : loops_.columns,
                    .add = k > 0 || (p_.c && p_.add)},
                   std::min(loops_.rows, block.rows - r), columns);
        }
      }
    }
    if (packed.end == p_.k) operands_.finish(block, sums, stride);
  }

  // Returns the rows after the last whole tile, on a copy with rows of zeros.
  OperandRows last_rows(const OperandRows& rows, int64_t count, int64_t length, float* copy) const {
    const int64_t first = count / loops_.rows * loops_.rows;
    for (int64_t r = first; r < count; ++r)
      for (int64_t k = 0; k < length; ++k)
        copy[(r - first) * kChain + k] = rows.a[r * rows.row_step + k * rows.step];
    if (first < count)
      std::fill(copy + (count - first) * kChain, copy + loops_.rows * kChain, 0.0f);
    return {copy, kChain, 1};
  }

  // Returns the rows of the tile that computes `count` rows, or the first of them.
  int64_t tile_rows(int64_t count) const {
    return std::min(loops_.rows, base::ceil_div(count, loops_.rows_step) * loops_.rows_step);
  }

  const float* direct_columns(const OperandPart& part, int64_t& step, float* panel) const {
    if (part.count == loops_.columns) return operands_.columns(part, step);
    operands_.pack_columns(panel, loops_.columns, part);
    return panel;
  }

  // A tile at the edge of c runs on a copy. Blocks of scratch have whole tiles.
  void run_tile(ProductTile tile, int64_t rows, int64_t columns) const {
    if (!p_.c || (rows == tile.rows && columns == loops_.columns)) return loops_.multiply(tile);
    alignas(64) float copy[kMostRows * kMostColumns];
    float* const c = tile.c;
    for (int64_t r = 0; tile.add && r < rows; ++r)
      std::memcpy(copy + r * loops_.columns, c + r * tile.stride, size_t(columns) * sizeof(float));
    const int64_t stride = std::exchange(tile.stride, loops_.columns);
    tile.c = copy;
    loops_.multiply(tile);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(c + r * stride, copy + r * loops_.columns, size_t(columns) * sizeof(float));
  }

  const PortableProduct& p_;
  const PortableOperands& operands_;
  const ProductLoops& loops_;
  int64_t rows_ = 0, columns_ = 0, row_blocks_ = 0, blocks_ = 0;  // of a block; their numbers
  int64_t padded_n_ = 0, depth_ = 0;  // depth_: k whose columns are packed at a time
  // A worker's floats, and the places of some of them.
  int64_t sums_ = 0, tile_ = 0, panel_ = 0, columns_alone_ = 0, own_ = 0;
  bool packs_alone_ = false;
  int threads_ = 1;
  float *packed_ = nullptr, *workers_ = nullptr;
};

}  // namespace

void put_bf16(uint16_t* c, float* sums, int64_t count, bool add, const VectorTable& table) {
  float wide[kChain];
  for (int64_t j = 0; add && j < count; j += kChain) {
    const int64_t part = std::min(kChain, count - j);
    table.from_bf16(wide, c + j, part);
    for (int64_t i = 0; i < part; ++i) sums[j + i] = wide[i] + sums[j + i];
  }
  table.to_bf16(c, sums, count);
}

void run_portable(const PortableProduct& p, const PortableOperands& operands,
                  const VectorTable& table, device::Queue& queue) {
  if (p.m > 0 && p.n > 0) PortableRun(p, operands, table, queue).run();
}

}  // namespace kernels
