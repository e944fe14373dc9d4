// SPDX-License-Identifier: Apache-2.0
// Conversion between float32 and bfloat16 or binary16, for the operands of 16-bit products. Values
// are rounded to the nearest, ties to even. Values too large for binary16 become infinite. Only
// GPUs use binary16.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct Cast {
  static constexpr Op op = Op::cast;
  View y, x;  // same count; f32 to bf16 or f16, or back
};

inline void check(const Cast& a) {
  const bool narrows = a.y.type != DType::f32;
  const View& narrow = narrows ? a.y : a.x;
  need_view(a.op, narrows ? "x" : "y", narrows ? a.x : a.y, DType::f32, {a.x.count});
  need_view(a.op, narrows ? "y" : "x", narrow, narrow.type == DType::f16 ? DType::f16 : DType::bf16,
            {a.x.count});
}

inline Cost cost(const Cast& a) { return {0, 6 * a.x.count}; }

}  // namespace kernels
