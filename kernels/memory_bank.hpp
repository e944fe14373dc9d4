// SPDX-License-Identifier: Apache-2.0
// A bank with a row per sample of the data set: scores of rows against some of its rows, the
// gradient, and the update of rows (ssl.md 3.7).
#pragma once

#include "kernels/check_views.hpp"

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

// Checks what scores and gradient have in common; `sums` are the scores or their gradient.
template <class Args>
void check_bank_rows(const Args& a, const char* name, const View& sums) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_size(a.op, "width", a.width, 1);
  need_matrix(a.op, name, sums, DType::f32, a.rows, a.columns, a.stride ? a.stride : a.columns);
  need_view(a.op, "bank", a.bank, DType::f32, {a.bank_rows, a.width});
  if (a.index.none())
    CHECK(a.columns == 1 && a.rows <= a.bank_rows, "{}: {} x {} places need an index",
          name_of(a.op), a.rows, a.columns);
  else
    need_matrix(a.op, "index", a.index, DType::i32, a.rows, a.columns,
                a.index_stride ? a.index_stride : a.columns);
}

inline void check(const BankScores& a) {
  check_bank_rows(a, "scores", a.scores);
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.width});
}
inline Cost cost(const BankScores& a) {
  const int64_t n = a.rows * a.columns;
  return {2 * n * a.width, 4 * (n * (a.width + 2) + a.x.count)};
}

inline void check(const BankGradient& a) {
  check_bank_rows(a, "d", a.d);
  need_view(a.op, "dx", a.dx, DType::f32, {a.rows, a.width});
}
inline Cost cost(const BankGradient& a) {
  const int64_t n = a.rows * a.columns;
  return {2 * n * a.width, 4 * (n * (a.width + 2) + a.dx.count)};
}

inline void check(const BankUpdate& a) {
  need_size(a.op, "count", a.count);
  need_size(a.op, "width", a.width, 1);
  need_view(a.op, "bank", a.bank, DType::f32, {a.bank_rows, a.width});
  need_view(a.op, "x", a.x, DType::f32, {a.count, a.width});
  need_view(a.op, "index", a.index, DType::i32, {a.count});
}
inline Cost cost(const BankUpdate& a) { return {6 * a.x.count, 12 * a.x.count}; }

}  // namespace kernels
