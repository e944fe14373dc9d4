// SPDX-License-Identifier: Apache-2.0
// Rows of unit length, for prototypes that are normalised after each update (ssl.md 3.5). A row may
// lie in parts on several ranks, so its sum of squares is formed part by part and added first.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// sums[r] = the sum of squares of those elements of row r that lie in x. Rows that do not lie in x
// keep their numbers.
struct RowSquares {
  static constexpr Op op = Op::row_squares;
  View sums;          // f64 [rows]
  View x;             // f32: elements [begin, begin + count) of the matrix
  int64_t begin = 0;  // in the matrix
  int64_t width = 0;  // elements of a row
};

// x = x / max(norm of its row, 1e-12).
struct UnitRows {
  static constexpr Op op = Op::unit_rows;
  View x;     // f32: elements [begin, begin + count) of the matrix
  View sums;  // f64 [rows]: sums of squares of whole rows
  int64_t begin = 0;
  int64_t width = 0;
  View decided{};  // optional f32 [3], see Clip: if the step is not applied, x stays unchanged
};

constexpr double kLeastRowNorm = 1e-12;

}  // namespace kernels
