// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the largest absolute value.
#include "kernels/max_abs.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const MaxAbs& a) {
  need_view(a.op, "largest", a.largest, DType::f64, {1});
  need_view(a.op, "x", a.x, DType::f32, {a.x.count});
}

Cost cost(const MaxAbs& a) { return {a.x.count, a.x.bytes()}; }

}  // namespace kernels
