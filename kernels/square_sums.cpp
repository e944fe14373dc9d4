// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of sums of squares.
#include "kernels/square_sums.hpp"

namespace kernels {

void check(const SquareSums& a) {
  CHECK(a.sum.type == DType::f64 && a.sum.count == 1, "square_sums: sum must be one f64");
  CHECK(a.x.type == DType::f32, "square_sums: x holds {}, must be f32", name_of(a.x.type));
}

Cost cost(const SquareSums& a) { return {2 * a.x.count, a.x.bytes()}; }

void check(const AddSums& a) {
  CHECK(a.y.type == DType::f64);
  CHECK(a.a.none() || (a.a.type == DType::f64 && a.a.count == a.y.count));
  CHECK(a.b.none() || (a.b.type == DType::f64 && a.b.count == a.y.count));
}

Cost cost(const AddSums& a) {
  int operands = int(!a.a.none()) + int(!a.b.none());
  return {operands == 2 ? a.y.count : 0, a.y.bytes() * (1 + operands)};
}

}  // namespace kernels
