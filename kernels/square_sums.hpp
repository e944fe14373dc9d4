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

}  // namespace kernels
