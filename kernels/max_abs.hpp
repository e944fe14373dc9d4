// SPDX-License-Identifier: Apache-2.0
// The largest absolute value of a tensor, for clipping by the infinity norm.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct MaxAbs {  // largest = max of |x[i]|, 0 without elements; a NaN counts as 0
  static constexpr Op op = Op::max_abs;
  View largest;  // f64 [1]
  View x;        // f32
};

}  // namespace kernels
