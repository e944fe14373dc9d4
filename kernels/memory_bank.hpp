// SPDX-License-Identifier: Apache-2.0
// A bank with a row per sample of the data set: scores of rows against some of its rows, the
// gradient, and the update of rows (ssl.md 3.7).
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// scores[r][c] = scale * x[r] . bank[index[r][c]]
struct BankScores {
  static constexpr Op op = Op::bank_scores;
  View scores;   // f32 [rows, columns], rows are `stride` elements apart (0 = columns)
  View x;        // f32 [rows, width]
  View bank;     // f32 [bank_rows, width]
  View index{};  // i32 [rows, columns], rows are index_stride apart (0 = columns); none: index is r
  int64_t rows = 0, columns = 1, width = 0, bank_rows = 0, stride = 0, index_stride = 0;
  float scale = 1;
};

// dx[r] = (or +=) scale * sum over c of d[r][c] * bank[index[r][c]]
struct BankGradient {
  static constexpr Op op = Op::bank_gradient;
  View dx;       // f32 [rows, width]
  View d;        // f32 [rows, columns], rows are `stride` elements apart (0 = columns)
  View bank;     // f32 [bank_rows, width]
  View index{};  // as in BankScores
  int64_t rows = 0, columns = 1, width = 0, bank_rows = 0, stride = 0, index_stride = 0;
  float scale = 1;
  Write write = Write::overwrite;
};

// bank[y] = normalised(momentum * bank[y] + (1 - momentum) * x[i]) for y = index[i]. If several i
// have one y, the last one counts.
struct BankUpdate {
  static constexpr Op op = Op::bank_update;
  View bank;   // f32 [bank_rows, width]
  View x;      // f32 [count, width]
  View index;  // i32 [count], each in [0, bank_rows)
  int64_t count = 0, width = 0, bank_rows = 0;
  float momentum = 0;
};

}  // namespace kernels
