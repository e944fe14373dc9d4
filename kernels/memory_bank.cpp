// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the memory bank.
#include "kernels/memory_bank.hpp"

#include "kernels/check_views.hpp"

namespace kernels {
namespace {

// Checks what scores and gradient have in common; `sums` are the scores or their gradient.
template <class Args>
void check_rows(const Args& a, const char* name, const View& sums) {
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

}  // namespace

void check(const BankScores& a) {
  check_rows(a, "scores", a.scores);
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.width});
}
Cost cost(const BankScores& a) {
  const int64_t n = a.rows * a.columns;
  return {2 * n * a.width, 4 * (n * (a.width + 2) + a.x.count)};
}

void check(const BankGradient& a) {
  check_rows(a, "d", a.d);
  need_view(a.op, "dx", a.dx, DType::f32, {a.rows, a.width});
}
Cost cost(const BankGradient& a) {
  const int64_t n = a.rows * a.columns;
  return {2 * n * a.width, 4 * (n * (a.width + 2) + a.dx.count)};
}

void check(const BankUpdate& a) {
  need_size(a.op, "count", a.count);
  need_size(a.op, "width", a.width, 1);
  need_view(a.op, "bank", a.bank, DType::f32, {a.bank_rows, a.width});
  need_view(a.op, "x", a.x, DType::f32, {a.count, a.width});
  need_view(a.op, "index", a.index, DType::i32, {a.count});
}
Cost cost(const BankUpdate& a) { return {6 * a.x.count, 12 * a.x.count}; }

}  // namespace kernels
