// SPDX-License-Identifier: Apache-2.0
// Copies matrices into columns of a wider one, and back. One product then serves several layers,
// whose weights are tensors of their own.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// y[r][c] = x[r][c], or += x[r][c].
struct CopyColumns {
  static constexpr Op op = Op::copy_columns;
  View y;  // [rows, columns] with leading dimension ldy (0 = columns), of x's type; f32 if added to
  View x;  // [rows, columns] with leading dimension ldx (0 = columns), f32, bf16 or f16
  int64_t rows = 0, columns = 0;
  int64_t ldy = 0, ldx = 0;
  Write write = Write::overwrite;

  // Elements from one stored row to the next.
  int64_t leading_of_y() const { return ldy ? ldy : columns; }
  int64_t leading_of_x() const { return ldx ? ldx : columns; }
};

inline void check(const CopyColumns& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns);
  const bool narrow = a.x.type == DType::bf16 || a.x.type == DType::f16;
  const DType type = narrow && a.write == Write::overwrite ? a.x.type : DType::f32;
  need_matrix(a.op, "y", a.y, type, a.rows, a.columns, a.leading_of_y());
  need_matrix(a.op, "x", a.x, type, a.rows, a.columns, a.leading_of_x());
}

inline Cost cost(const CopyColumns& a) {
  const bool adds = a.write == Write::accumulate;
  const int64_t count = a.rows * a.columns;
  return {adds ? count : 0, (adds ? 3 : 2) * count * device::size_of(a.x.type)};
}

}  // namespace kernels
