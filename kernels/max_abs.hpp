// SPDX-License-Identifier: Apache-2.0
// The largest absolute value of a tensor, for clipping by the infinity norm.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct MaxAbs {  // largest = max of |x[i]|, 0 without elements; a NaN counts as 0
  static constexpr Op op = Op::max_abs;
  View largest;  // f64 [1]
  View x;        // f32
};

inline void check(const MaxAbs& a) {
  need_view(a.op, "largest", a.largest, DType::f64, {1});
  need_view(a.op, "x", a.x, DType::f32, {a.x.count});
}

inline Cost cost(const MaxAbs& a) { return {a.x.count, a.x.bytes()}; }

}  // namespace kernels
