// Between float32 and bfloat16 or binary16: what a narrow product's operands go through. To the nearest, ties to even; what is
// too large for binary16 becomes infinite. Binary16 is for GPUs.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct Cast {
  static constexpr Op op = Op::cast;
  View y, x;              // same count; f32 to bf16 or f16, or back
};

}  // namespace kernels
