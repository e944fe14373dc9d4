// SPDX-License-Identifier: Apache-2.0
// Sums over the examples of a pass of numbers that each example has: its loss and parts of it.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// sums[j][c] = sum of values[c][i] over the examples i of slice j, in order, in double.
struct ExampleSums {
  static constexpr Op op = Op::example_sums;
  View sums;    // f64 [slices, columns]
  View values;  // f32 [columns, batch]
  int64_t batch = 0, columns = 0, slices = 1;
};

}  // namespace kernels
