// SPDX-License-Identifier: Apache-2.0
// Small memory-bound ops: sums, copies, gathers and scatters of rows, dropout.
#pragma once

#include "base/random.hpp"
#include "kernels/check_views.hpp"

namespace kernels {

struct Add {  // y = a + scale * b; y may be a or b
  static constexpr Op op = Op::add;
  View y, a, b;  // same count
  float scale = 1;
};

struct AddTable {  // y[r] = x[r] + table[r % length]; y may be x
  static constexpr Op op = Op::add_table;
  View y, x;   // [rows, width]
  View table;  // [length, width]
  int64_t rows = 0, width = 0, length = 0;
};

struct Copy {  // y = x
  static constexpr Op op = Op::copy;
  View y, x;  // same type and count
};

struct Fill {  // y = value
  static constexpr Op op = Op::fill;
  View y;
  float value = 0;
};

struct GatherRows {  // y[i] = index[i] >= 0 ? x[index[i]] : 0
  static constexpr Op op = Op::gather_rows;
  View y;      // [rows, width], of x's type
  View x;      // [source_rows, width], f32, bf16 or f16
  View index;  // i32 [rows], each < source_rows
  int64_t rows = 0, width = 0, source_rows = 0;
};

// y[index[i]] = x[i], or += x[i], where index[i] >= 0. These indices are distinct. Other rows of y
// stay unchanged.
struct ScatterRows {
  static constexpr Op op = Op::scatter_rows;
  View y;      // [target_rows, width]
  View x;      // [rows, width]
  View index;  // i32 [rows]
  int64_t rows = 0, width = 0, target_rows = 0;
  Write write = Write::overwrite;
};

// y[i] = keep(i) ? x[i] / (1 - rate) : 0, keep(i) = stream.uniform(first + i) >= rate. y may be x.
// No mask is saved: backward runs the same op on the gradient.
struct Dropout {
  static constexpr Op op = Op::dropout;
  View y, x;  // same count and type, f32, bf16 or f16
  float rate = 0;
  base::Stream stream;
  int64_t first = 0;  // draw index of element 0: global example number * elements per example
};

inline void check(const Add& a) {
  need_view(a.op, "y", a.y, DType::f32, {a.a.count});
  need_view(a.op, "a", a.a, DType::f32, {a.a.count});
  need_view(a.op, "b", a.b, DType::f32, {a.a.count});
}
inline Cost cost(const Add& a) { return {a.y.count, 12 * a.y.count}; }

inline void check(const AddTable& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "length", a.length, 1);
  need_view(a.op, "y", a.y, DType::f32, {a.rows, a.width});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.width});
  need_view(a.op, "table", a.table, DType::f32, {a.length, a.width});
}
inline Cost cost(const AddTable& a) {
  int64_t n = a.rows * a.width;
  return {n, 4 * (2 * n + std::min(a.rows, a.length) * a.width)};
}

inline void check(const Copy& a) {
  need_view(a.op, "y", a.y, a.x.type, {a.x.count});
  need_view(a.op, "x", a.x, a.x.type, {a.x.count});
}
inline Cost cost(const Copy& a) { return {0, 2 * a.x.bytes()}; }

inline void check(const Fill& a) { need_view(a.op, "y", a.y, DType::f32, {a.y.count}); }
inline Cost cost(const Fill& a) { return {0, a.y.bytes()}; }

inline void check(const GatherRows& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "source_rows", a.source_rows);
  need_view(a.op, "y", a.y, a.x.type, {a.rows, a.width});
  need_activation(a.op, "x", a.x, {a.source_rows, a.width});
  need_view(a.op, "index", a.index, DType::i32, {a.rows});
}
inline Cost cost(const GatherRows& a) { return {0, 2 * a.y.bytes() + 4 * a.rows}; }

inline void check(const ScatterRows& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "width", a.width, 1);
  need_size(a.op, "target_rows", a.target_rows);
  need_view(a.op, "y", a.y, DType::f32, {a.target_rows, a.width});
  need_view(a.op, "x", a.x, DType::f32, {a.rows, a.width});
  need_view(a.op, "index", a.index, DType::i32, {a.rows});
}
inline Cost cost(const ScatterRows& a) { return {0, 4 * (2 * a.rows * a.width + a.rows)}; }

inline void check(const Dropout& a) {
  need_view(a.op, "y", a.y, a.x.type, {a.x.count});
  need_activation(a.op, "x", a.x, {a.x.count});
  need_size(a.op, "first", a.first);
  CHECK(a.rate >= 0 && a.rate < 1, "{}: rate is {}, must lie in [0, 1)", name_of(a.op), a.rate);
}
inline Cost cost(const Dropout& a) { return {a.x.count, 2 * a.x.bytes()}; }

}  // namespace kernels
