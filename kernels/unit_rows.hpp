// SPDX-License-Identifier: Apache-2.0
// Rows of unit length, for prototypes that are normalised after each update (ssl.md 3.5). Several
// ranks may hold parts of a row, so its sum of squares is formed part by part and added first.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// sums[r] = the sum of squares of the elements of row r in x. The sums of rows outside of x stay
// unchanged.
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

inline void check_unit_rows(Op op, const View& x, const View& sums, int64_t begin, int64_t width) {
  need_size(op, "width", width, 1);
  need_size(op, "begin", begin);
  need_view(op, "x", x, DType::f32, {x.count});
  need_view(op, "sums", sums, DType::f64, {sums.count});
  CHECK(begin + x.count <= sums.count * width, "{}: elements [{}, {}) are outside {} rows of {}",
        name_of(op), begin, begin + x.count, sums.count, width);
}

inline void check(const RowSquares& a) { check_unit_rows(a.op, a.x, a.sums, a.begin, a.width); }
inline Cost cost(const RowSquares& a) {
  return {2 * a.x.count, a.x.bytes() + 8 * (a.x.count / a.width + 1)};
}

inline void check(const UnitRows& a) {
  check_unit_rows(a.op, a.x, a.sums, a.begin, a.width);
  allow_view(a.op, "decided", a.decided, DType::f32, {3});
}
inline Cost cost(const UnitRows& a) {
  return {a.x.count, 2 * a.x.bytes() + 8 * (a.x.count / a.width + 1)};
}

}  // namespace kernels
