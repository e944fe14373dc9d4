// SPDX-License-Identifier: Apache-2.0
// Rotary positions (arXiv 2104.09864): queries or keys are turned by angles that depend on a
// token's place. Numbers i and i + d / 2 of a head of d numbers are a pair, as in DINOv3.
//   (x[i], x[i + d / 2]) = (x[i] cos - x[i + d / 2] sin, x[i + d / 2] cos + x[i] sin)
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct RotateHeads {
  static constexpr Op op = Op::rotate_heads;
  View x;      // [rows, heads, head_dim], f32, bf16 or f16; turned in place
  View table;  // f32 [length, 2, head_dim / 2]: cosines, then sines; row r of x has row r % length
  int64_t rows = 0, heads = 0, head_dim = 0;
  int64_t stride = 0;     // elements from a row of x to the next; 0: heads * head_dim
  bool backward = false;  // turns by the opposite angles, which makes gradients

  int64_t row() const { return stride ? stride : heads * head_dim; }
  int64_t length() const { return table.count / head_dim; }
};

inline void check(const RotateHeads& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "heads", a.heads, 1);
  need_size(a.op, "head_dim", a.head_dim, 2);
  CHECK(a.head_dim % 2 == 0, "{}: head_dim {} is odd", name_of(a.op), a.head_dim);
  CHECK(a.row() >= a.heads * a.head_dim, "{}: rows of {} overlap", name_of(a.op), a.row());
  need_activation(a.op, "x", a.x, {a.rows ? (a.rows - 1) * a.row() + a.heads * a.head_dim : 0});
  need_view(a.op, "table", a.table, DType::f32, {a.table.count});
  CHECK(a.length() > 0 && a.rows % a.length() == 0 && a.table.count % a.head_dim == 0,
        "{}: a table of {} does not divide {} rows", name_of(a.op), a.table.count, a.rows);
}
inline Cost cost(const RotateHeads& a) {
  const int64_t count = a.rows * a.heads * a.head_dim;
  return {3 * count, 2 * count * device::size_of(a.x.type) + a.table.bytes()};
}

}  // namespace kernels
