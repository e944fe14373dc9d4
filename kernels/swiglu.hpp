// SPDX-License-Identifier: Apache-2.0
// The hidden layer of gated MLPs (SwiGLU, arXiv 2002.05202): y = silu(gate) * value, where silu(x)
// = x / (1 + exp(-x)).
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct SwigluForward {
  static constexpr Op op = Op::swiglu_forward;
  View y, gate, value;  // same count and type, f32, bf16 or f16; y may be gate or value
};

struct SwigluBackward {
  static constexpr Op op = Op::swiglu_backward;
  View dgate, dvalue;    // dvalue may be dy
  View dy, gate, value;  // all of the same count and type, f32, bf16 or f16
};

inline void check(const SwigluForward& a) {
  need_activation(a.op, "gate", a.gate, {a.gate.count});
  need_view(a.op, "value", a.value, a.gate.type, {a.gate.count});
  need_view(a.op, "y", a.y, a.gate.type, {a.gate.count});
}
inline Cost cost(const SwigluForward& a) { return {10 * a.gate.count, 3 * a.gate.bytes()}; }

inline void check(const SwigluBackward& a) {
  need_activation(a.op, "gate", a.gate, {a.gate.count});
  need_view(a.op, "value", a.value, a.gate.type, {a.gate.count});
  need_view(a.op, "dy", a.dy, a.gate.type, {a.gate.count});
  need_view(a.op, "dgate", a.dgate, a.gate.type, {a.gate.count});
  need_view(a.op, "dvalue", a.dvalue, a.gate.type, {a.gate.count});
}
inline Cost cost(const SwigluBackward& a) { return {18 * a.gate.count, 5 * a.gate.bytes()}; }

}  // namespace kernels
