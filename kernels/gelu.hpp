// SPDX-License-Identifier: Apache-2.0
// GELU, tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (cappa.md 1.3).
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct GeluForward {
  static constexpr Op op = Op::gelu_forward;
  View y, x;  // same count and type, f32, bf16 or f16
};

struct GeluBackward {
  static constexpr Op op = Op::gelu_backward;
  View dx, dy, x;  // same count and type, f32, bf16 or f16; dx may be dy
};

inline void check(const GeluForward& a) {
  need_view(a.op, "y", a.y, a.x.type, {a.x.count});
  need_activation(a.op, "x", a.x, {a.x.count});
}

// FLOPs are counted as in published tables, not as executed: a few operations and an exponential
// for each element.
inline Cost cost(const GeluForward& a) { return {8 * a.x.count, 2 * a.x.bytes()}; }

inline void check(const GeluBackward& a) {
  need_view(a.op, "dx", a.dx, a.x.type, {a.x.count});
  need_view(a.op, "dy", a.dy, a.x.type, {a.x.count});
  need_activation(a.op, "x", a.x, {a.x.count});
}

inline Cost cost(const GeluBackward& a) { return {16 * a.x.count, 3 * a.x.bytes()}; }

}  // namespace kernels
