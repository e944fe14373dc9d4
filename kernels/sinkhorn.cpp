// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of Sinkhorn's assignment.
#include "kernels/sinkhorn.hpp"

#include "kernels/check_views.hpp"

namespace kernels {
namespace {

// q and x of totals may be f32 or f64.
void need_wide(Op op, const char* name, const View& view, int64_t rows, int64_t columns) {
  need_view(op, name, view, view.type == DType::f64 ? DType::f64 : DType::f32, {rows, columns});
}
void need_rows(Op op, const char* name, const View& view, int64_t rows, int64_t columns,
               int64_t stride) {
  need_matrix(op, name, view, DType::f32, rows, columns, stride ? stride : columns);
}

}  // namespace

void check(const ColumnTotals& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "totals", a.totals, DType::f64, {a.columns});
  need_wide(a.op, "x", a.x, a.rows, a.columns);
}
Cost cost(const ColumnTotals& a) { return {a.x.count, a.x.bytes() + a.totals.bytes()}; }

void check(const FiniteMaximum& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "maximum", a.maximum, DType::f32, {1});
  need_rows(a.op, "x", a.x, a.rows, a.columns, a.stride);
}
Cost cost(const FiniteMaximum& a) {
  const int64_t n = a.rows * a.columns;
  return {n, 4 * n};
}

void check(const SinkhornStart& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_wide(a.op, "q", a.q, a.rows, a.columns);
  need_rows(a.op, "scores", a.scores, a.rows, a.columns, a.stride);
  need_view(a.op, "maxima", a.maxima, DType::f32, {a.maxima.count});
  CHECK(a.maxima.count > 0 && a.epsilon > 0, "{}: {} maxima, epsilon {}", name_of(a.op),
        a.maxima.count, a.epsilon);
}
Cost cost(const SinkhornStart& a) { return {3 * a.q.count, a.q.bytes() + 4 * a.q.count}; }

void check(const SinkhornScale& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_size(a.op, "samples", a.samples, 1);
  need_wide(a.op, "q", a.q, a.rows, a.columns);
  allow_view(a.op, "totals", a.totals, DType::f64, {a.columns});
  CHECK(a.target_rows >= 0 && a.target_rows <= a.rows, "{}: {} of {} rows are targets",
        name_of(a.op), a.target_rows, a.rows);
  if (!a.targets.none())
    need_rows(a.op, "targets", a.targets, a.target_rows, a.columns, a.target_stride);
}
Cost cost(const SinkhornScale& a) {
  const int64_t written = a.targets.none() ? a.q.bytes() : 4 * a.target_rows * a.columns;
  return {4 * a.q.count, a.q.bytes() + written};
}
size_t cuda_scratch(const SinkhornScale& a) { return size_t(a.columns + 1) * sizeof(double); }

}  // namespace kernels
