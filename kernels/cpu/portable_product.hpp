// SPDX-License-Identifier: Apache-2.0
// Products whose bits are the same on every CPU (determinism.level "anywhere"). An output is a sum
// of chains of kChain fused multiply-adds, in the order of k (product_tile.hpp). Nothing else
// decides its bits: not the vectors, the tiles, the threads, nor the other outputs.
//
// No library is in the path. The columns are packed into panels of one tile's width; the rows are
// read where they are, or copied by the thread that needs them.
#pragma once

#include <cstdint>
#include <cstring>

#include "device/queue.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

// Rows (or columns) of an operand, and the part of k.
struct OperandPart {
  int64_t first, count;   // rows or columns
  int64_t begin, length;  // of k; length is at most kChain
};

// The place of rows: number k of row r is at a + r * row_step + k * step.
struct OperandRows {
  const float* a;
  int64_t row_step, step;
};

// Part of the outputs that one thread computes.
struct ProductBlock {
  int64_t row, rows, column, columns;
};

// The operands of a product, and the work that ends its blocks. Functions may not throw.
class PortableOperands {
 public:
  virtual ~PortableOperands() = default;
  // Returns the rows of a part, which may be copied to `copy`: kChain floats for each. Nothing
  // after the last row is read.
  virtual OperandRows rows(const OperandPart& part, float* copy) const = 0;
  // Fills panels of `width` columns (PanelsOfColumns). part.first is a multiple of width.
  virtual void pack_columns(float* panels, int64_t width, const OperandPart& part) const = 0;
  // Returns the columns of a part as they are stored, and the step from one k to the next; null if
  // they must be packed.
  virtual const float* columns(const OperandPart&, int64_t& /*step*/) const { return nullptr; }
  // Ends a block. Row r of its sums is at sums + r * stride.
  virtual void finish(const ProductBlock&, float* sums, int64_t stride) const = 0;
};

// Copies `count` numbers to floats. T: float, or bf16 as uint16_t.
inline void copy_floats(float* to, const float* from, int64_t count, const VectorTable&) {
  // A call of memcpy takes longer than the copy of a short line. The last vectors may overlap.
  constexpr int64_t kVector = 8, kShort = 64;
  if (count < kVector || count > kShort)
    return void(std::memcpy(to, from, size_t(count) * sizeof(float)));
  auto copy = [&](int64_t i) { std::memcpy(to + i, from + i, kVector * sizeof(float)); };
  for (int64_t i = 0; i < count - kVector; i += kVector) copy(i);
  copy(count - kVector);
}
inline void copy_floats(float* to, const uint16_t* from, int64_t count, const VectorTable& table) {
  table.from_bf16(to, from, count);
}

// Rounds sums to bf16, after adding what c holds if `add`. The sums are overwritten.
void put_bf16(uint16_t* c, float* sums, int64_t count, bool add, const VectorTable& table);

struct PortableProduct {
  int64_t m = 0, n = 0, k = 0;
  // f32 [m, n] with rows `ldc` apart, which gets the sums; null: sums are in scratch, which only
  // `finish` sees.
  float* c = nullptr;
  int64_t ldc = 0;
  bool add = false;  // sums begin with c
};

// Runs the product, and `finish` for each block of outputs. k must be positive.
void run_portable(const PortableProduct& p, const PortableOperands& operands,
                  const VectorTable& table, device::Queue& queue);

}  // namespace kernels
