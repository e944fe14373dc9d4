// SPDX-License-Identifier: Apache-2.0
// Sums of squares in double, and the additions that carry such sums along a tree. The number of
// elements alone fixes the order of a sum: threads, addresses and neighbours do not.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct SquareSums {  // sum = sum of x[i]^2
  static constexpr Op op = Op::square_sums;
  View sum;  // f64 [1]
  View x;    // f32
};
size_t cuda_scratch(const SquareSums&);

struct AddSums {  // y = a + b; an absent operand counts as zero; y may be a or b
  static constexpr Op op = Op::add_sums;
  View y;         // f64
  View a{}, b{};  // f64, same count
};

inline void check(const SquareSums& a) {
  CHECK(a.sum.type == DType::f64 && a.sum.count == 1, "square_sums: sum must be one f64");
  CHECK(a.x.type == DType::f32, "square_sums: x holds {}, must be f32", name_of(a.x.type));
}

inline Cost cost(const SquareSums& a) { return {2 * a.x.count, a.x.bytes()}; }

inline void check(const AddSums& a) {
  CHECK(a.y.type == DType::f64);
  CHECK(a.a.none() || (a.a.type == DType::f64 && a.a.count == a.y.count));
  CHECK(a.b.none() || (a.b.type == DType::f64 && a.b.count == a.y.count));
}

inline Cost cost(const AddSums& a) {
  int operands = int(!a.a.none()) + int(!a.b.none());
  return {operands == 2 ? a.y.count : 0, a.y.bytes() * (1 + operands)};
}

}  // namespace kernels
