// SPDX-License-Identifier: Apache-2.0
// Activations of heads (ssl.md 2) and MLPs: ReLU, GELU with the error function, and OpenAI's quick
// approximation of GELU.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

enum class Activation { relu, gelu_erf, gelu_quick };

// y = max(x, 0), y = x / 2 (1 + erf(x / sqrt(2))), or y = x / (1 + exp(-1.702 x)).
struct ActivationForward {
  static constexpr Op op = Op::activation_forward;
  View y, x;  // same count and type, f32, bf16 or f16; y may be x
  Activation kind = Activation::relu;
};

// dx = dy times the derivative at x. ReLU's derivative at 0 is 0.
struct ActivationBackward {
  static constexpr Op op = Op::activation_backward;
  View dx, dy, x;  // same count and type, f32, bf16 or f16; dx may be dy
  Activation kind = Activation::relu;
};

inline void check(const ActivationForward& a) {
  need_activation(a.op, "x", a.x, {a.x.count});
  need_view(a.op, "y", a.y, a.x.type, {a.x.count});
}

inline Cost cost(const ActivationForward& a) {
  return {(a.kind == Activation::relu ? 1 : 10) * a.x.count, 2 * a.x.bytes()};
}

inline void check(const ActivationBackward& a) {
  need_activation(a.op, "x", a.x, {a.x.count});
  need_view(a.op, "dy", a.dy, a.x.type, {a.x.count});
  need_view(a.op, "dx", a.dx, a.x.type, {a.x.count});
}

inline Cost cost(const ActivationBackward& a) {
  return {(a.kind == Activation::relu ? 1 : 15) * a.x.count, 3 * a.x.bytes()};
}

}  // namespace kernels
