// SPDX-License-Identifier: Apache-2.0
// Sinkhorn's assignment of samples to prototypes (ssl.md 3.5), in steps between which ranks add
// their totals. A row of q is a sample, a column is a prototype; q is f32 or f64.
//
// sinkhorn_start makes q. Each of `iterations` rounds forms the totals of the columns over all
// samples (column_totals, then the sum over ranks), and divides by them in sinkhorn_scale.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// totals[c] = sum over the rows of x, in double, in order of the rows.
struct ColumnTotals {
  static constexpr Op op = Op::column_totals;
  View totals;  // f64 [columns]
  View x;       // f32 or f64 [rows, columns]
  int64_t rows = 0, columns = 0;
};

// maximum = the largest finite value of x, or the lowest number if there is none.
struct FiniteMaximum {
  static constexpr Op op = Op::finite_maximum;
  View maximum;  // f32 [1]
  View x;        // f32 [rows, columns], rows are `stride` elements apart (0 = columns)
  int64_t rows = 0, columns = 0, stride = 0;
};

// q = exp((min(scores, M) - M) / epsilon), M = the largest of the maxima.
struct SinkhornStart {
  static constexpr Op op = Op::sinkhorn_start;
  View q;       // f32 or f64 [rows, columns]
  View scores;  // f32 [rows, columns], rows are `stride` elements apart (0 = columns)
  View maxima;  // f32 [any]
  int64_t rows = 0, columns = 0, stride = 0;
  float epsilon = 1;
};

// Added to every element of q if a prototype has no sample.
constexpr double kSinkhornLeast = 1e-12;

// One round. q is first divided by the sum of the totals if `first`. If any total is 0, then
// kSinkhornLeast is added to q, and to each total for each sample. Every column is divided by
// columns * total, then every row by samples * its sum, or by its sum if targets are given. Without
// totals only the rows are divided.
struct SinkhornScale {
  static constexpr Op op = Op::sinkhorn_scale;
  View q;          // f32 or f64 [rows, columns], in and out; out only without targets
  View totals{};   // optional f64 [columns]
  View targets{};  // optional f32 [target_rows, columns], rows are target_stride elements apart
  int64_t rows = 0, columns = 0, samples = 0;
  int64_t target_rows = 0, target_stride = 0;
  bool first = false;
  bool hard = false;  // a target is 1 at its largest element (the first one of equals), else 0
};

// q and x of totals may be f32 or f64.
inline void need_wide_view(Op op, const char* name, const View& view, int64_t rows,
                           int64_t columns) {
  need_view(op, name, view, view.type == DType::f64 ? DType::f64 : DType::f32, {rows, columns});
}
inline void need_row_view(Op op, const char* name, const View& view, int64_t rows, int64_t columns,
                          int64_t stride) {
  need_matrix(op, name, view, DType::f32, rows, columns, stride ? stride : columns);
}

inline void check(const ColumnTotals& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "totals", a.totals, DType::f64, {a.columns});
  need_wide_view(a.op, "x", a.x, a.rows, a.columns);
}
inline Cost cost(const ColumnTotals& a) { return {a.x.count, a.x.bytes() + a.totals.bytes()}; }

inline void check(const FiniteMaximum& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "maximum", a.maximum, DType::f32, {1});
  need_row_view(a.op, "x", a.x, a.rows, a.columns, a.stride);
}
inline Cost cost(const FiniteMaximum& a) {
  const int64_t n = a.rows * a.columns;
  return {n, 4 * n};
}

inline void check(const SinkhornStart& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_wide_view(a.op, "q", a.q, a.rows, a.columns);
  need_row_view(a.op, "scores", a.scores, a.rows, a.columns, a.stride);
  need_view(a.op, "maxima", a.maxima, DType::f32, {a.maxima.count});
  CHECK(a.maxima.count > 0 && a.epsilon > 0, "{}: {} maxima, epsilon {}", name_of(a.op),
        a.maxima.count, a.epsilon);
}
inline Cost cost(const SinkhornStart& a) { return {3 * a.q.count, a.q.bytes() + 4 * a.q.count}; }

inline void check(const SinkhornScale& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_size(a.op, "samples", a.samples, 1);
  need_wide_view(a.op, "q", a.q, a.rows, a.columns);
  allow_view(a.op, "totals", a.totals, DType::f64, {a.columns});
  CHECK(a.target_rows >= 0 && a.target_rows <= a.rows, "{}: {} of {} rows are targets",
        name_of(a.op), a.target_rows, a.rows);
  if (!a.targets.none())
    need_row_view(a.op, "targets", a.targets, a.target_rows, a.columns, a.target_stride);
}
inline Cost cost(const SinkhornScale& a) {
  const int64_t written = a.targets.none() ? a.q.bytes() : 4 * a.target_rows * a.columns;
  return {4 * a.q.count, a.q.bytes() + written};
}
inline size_t cuda_scratch(const SinkhornScale& a) {
  return size_t(a.columns + 1) * sizeof(double);
}

}  // namespace kernels
