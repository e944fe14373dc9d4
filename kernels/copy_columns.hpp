// SPDX-License-Identifier: Apache-2.0
// Copies matrices into columns of a wider one, and back. One product then serves several layers,
// whose weights are tensors of their own.
#pragma once

#include "kernels/dispatch.hpp"

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

}  // namespace kernels
