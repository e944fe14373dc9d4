// SPDX-License-Identifier: Apache-2.0
// CPU implementation of products of few rows: divides columns among threads. decode_loops.hpp
// computes the sums of a block of rows and columns.
#include "kernels/row_product.hpp"

#include <algorithm>

#include "kernels/bf16_value.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {
namespace {

// A block holds all its sums. Its weights, [k, columns], come from memory once.
constexpr int64_t kMostRowsOfBlock = 64, kSumsOfBlock = 6144, kMostColumnsOfBlock = 960;
constexpr int64_t kColumnUnit = 32;     // threads share no cache line of c
constexpr int64_t kColumnsAtOnce = 96;  // a multiple of the tiles' widths in decode_loops.hpp

int64_t columns_of_block(int64_t rows) {
  return std::min(kSumsOfBlock / std::min(rows, kMostRowsOfBlock) / kColumnsAtOnce * kColumnsAtOnce,
                  kMostColumnsOfBlock);
}

// Adds bias and residual to the sums of a row, and writes it. `at`: index of its first element.
void write_row(const RowProduct& a, float* sums, int64_t at, int64_t columns) {
  const int64_t column = at % a.n;
  if (a.bias.type == DType::f32 && !a.bias.none()) {
    const float* bias = a.bias.f32() + column;
    for (int64_t j = 0; j < columns; ++j) sums[j] += bias[j];
  } else if (!a.bias.none()) {
    const uint16_t* bias = a.bias.bf16() + column;
    for (int64_t j = 0; j < columns; ++j) sums[j] += loops::to_float(loops::Bf16{bias[j]});
  }
  if (!a.residual.none()) {
    const float* residual = a.residual.f32() + at;
    for (int64_t j = 0; j < columns; ++j) sums[j] += residual[j];
  }
  if (a.c.type == DType::f32)
    std::copy_n(sums, columns, a.c.f32() + at);
  else
    vector_table().to_bf16(a.c.bf16() + at, sums, columns);
}

}  // namespace

void run_cpu(const RowProduct& a, Queue& queue) {
  if (a.m == 0) return;
  const float* rows = nullptr;
  if (a.a.type == DType::f32) {
    rows = a.a.f32();
  } else if (!vector_table().pairs) {  // the loops multiply floats
    float* wide = static_cast<float*>(queue.scratch(size_t(a.a.count) * sizeof(float)));
    vector_table().from_bf16(wide, a.a.bf16(), a.a.count);
    rows = wide;
  }
  const int64_t block = columns_of_block(a.m);
  vector_table().with(a.a.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    const T *stored = static_cast<const T*>(a.a.data), *b = static_cast<const T*>(a.b.data);
    for_ranges(queue, a.n, a.m * a.n * a.k, kColumnUnit, [&](int64_t begin, int64_t end) {
      alignas(64) float sums[kSumsOfBlock];
      for (int64_t j = begin; j < end; j += block) {
        const int64_t columns = std::min(block, end - j);
        for (int64_t r = 0; r < a.m; r += kMostRowsOfBlock) {
          const int64_t count = std::min(kMostRowsOfBlock, a.m - r);
          loops.row_product({.sums = sums,
                             .a = rows ? rows + r * a.k : nullptr,
                             .stored = stored + r * a.k,
                             .b = b + j,
                             .rows = count,
                             .columns = columns,
                             .k = a.k,
                             .n = a.n,
                             .stride = block});
          for (int64_t i = 0; i < count; ++i)
            write_row(a, sums + i * block, (r + i) * a.n + j, columns);
        }
      }
    });
  });
}

}  // namespace kernels
