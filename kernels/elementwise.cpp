// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the small memory-bound ops.
#include "kernels/elementwise.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const Add& a) {
  need_view(a.op, "y", a.y, DType::f32, {a.a.count});
  need_view(a.op, "a", a.a, DType::f32, {a.a.count});
  need_view(a.op, "b", a.b, DType::f32, {a.a.count});
}
Cost cost(const Add& a) { return {a.y.count, 12 * a.y.count}; }

void check(const AddTable& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "length", a.length, 1);
  need_view(a.op, "y", a.y, DType::f32, {a.rows, a.width});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.width});
  need_view(a.op, "table", a.table, DType::f32, {a.length, a.width});
}
Cost cost(const AddTable& a) {
  int64_t n = a.rows * a.width;
  return {n, 4 * (2 * n + std::min(a.rows, a.length) * a.width)};
}

void check(const Copy& a) {
  need_view(a.op, "y", a.y, a.x.type, {a.x.count});
  need_view(a.op, "x", a.x, a.x.type, {a.x.count});
}
Cost cost(const Copy& a) { return {0, 2 * a.x.bytes()}; }

void check(const Fill& a) { need_view(a.op, "y", a.y, DType::f32, {a.y.count}); }
Cost cost(const Fill& a) { return {0, a.y.bytes()}; }

void check(const GatherRows& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "source_rows", a.source_rows);
  need_view(a.op, "y", a.y, a.x.type, {a.rows, a.width});
  need_activation(a.op, "x", a.x, {a.source_rows, a.width});
  need_view(a.op, "index", a.index, DType::i32, {a.rows});
}
Cost cost(const GatherRows& a) { return {0, 2 * a.y.bytes() + 4 * a.rows}; }

void check(const ScatterRows& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "target_rows", a.target_rows);
  need_view(a.op, "y", a.y, DType::f32, {a.target_rows, a.width});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.width});
  need_view(a.op, "index", a.index, DType::i32, {a.rows});
}
Cost cost(const ScatterRows& a) { return {0, 4 * (2 * a.rows * a.width + a.rows)}; }

void check(const Dropout& a) {
  need_view(a.op, "y", a.y, a.x.type, {a.x.count});
  need_activation(a.op, "x", a.x, {a.x.count});
  need_size(a.op, "first", a.first);
  CHECK(a.rate >= 0 && a.rate < 1, "{}: rate is {}, must lie in [0, 1)", name_of(a.op), a.rate);
}
Cost cost(const Dropout& a) { return {a.x.count, 2 * a.x.bytes()}; }

}  // namespace kernels
