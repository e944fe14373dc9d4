// SPDX-License-Identifier: Apache-2.0
// Conversion between float32 and bfloat16 or binary16, for the operands of 16-bit products. Values
// are rounded to the nearest, ties to even. Values too large for binary16 become infinite. Only
// GPUs use binary16.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct Cast {
  static constexpr Op op = Op::cast;
  View y, x;  // same count; f32 to bf16 or f16, or back
};

}  // namespace kernels
