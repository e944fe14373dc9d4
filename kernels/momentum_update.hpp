// SPDX-License-Identifier: Apache-2.0
// Momentum like big_vision's momentum_hp: T = add g + k T, where add is 1 without dampening (ssl.md
// 4). The direction is T, or g + momentum T for Nesterov. A bfloat16 T is rounded only when it is
// stored; the update uses the unrounded value.
#pragma once

#include "kernels/apply_update.hpp"

namespace kernels {

struct MomentumUpdate {
  static constexpr Op op = Op::momentum_update;
  Update update;
  View trace;          // f32 or bf16 [count]
  float keep = 0;      // k: the coefficient of the stored trace, rounded to the type of the trace
  float momentum = 0;  // unrounded, for Nesterov
  bool nesterov = false;
  float add = 1;  // 1 - dampening
};
size_t cuda_scratch(const MomentumUpdate&);

inline void check(const MomentumUpdate& a) {
  check(a.update);
  CHECK(a.trace.type == DType::f32 || a.trace.type == DType::bf16,
        "momentum_update: trace holds {}, must be f32 or bf16", name_of(a.trace.type));
  CHECK(a.trace.count == a.update.count());
}

inline Cost cost(const MomentumUpdate& a) {
  return {5 * a.update.count(), 12 * a.update.count() + 2 * a.trace.bytes()};
}

}  // namespace kernels
