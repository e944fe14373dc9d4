// SPDX-License-Identifier: Apache-2.0
// GELU, tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (cappa.md 1.3).
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct GeluForward {
  static constexpr Op op = Op::gelu_forward;
  View y, x;  // same count and type, f32, bf16 or f16
};

struct GeluBackward {
  static constexpr Op op = Op::gelu_backward;
  View dx, dy, x;  // same count and type, f32, bf16 or f16; dx may be dy
};

}  // namespace kernels
