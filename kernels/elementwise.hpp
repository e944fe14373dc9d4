// SPDX-License-Identifier: Apache-2.0
// Small memory-bound ops: sums, copies, gathers and scatters of rows, dropout.
#pragma once

#include "base/random.hpp"
#include "kernels/dispatch.hpp"

namespace kernels {

struct Add {  // y = a + b; y may be a or b
  static constexpr Op op = Op::add;
  View y, a, b;  // same count
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

}  // namespace kernels
