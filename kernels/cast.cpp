// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of casts.
#include "kernels/cast.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const Cast& a) {
  const bool narrows = a.y.type != DType::f32;
  const View& narrow = narrows ? a.y : a.x;
  need_view(a.op, narrows ? "x" : "y", narrows ? a.x : a.y, DType::f32, {a.x.count});
  need_view(a.op, narrows ? "y" : "x", narrow, narrow.type == DType::f16 ? DType::f16 : DType::bf16,
            {a.x.count});
}

Cost cost(const Cast& a) { return {0, 6 * a.x.count}; }

}  // namespace kernels
