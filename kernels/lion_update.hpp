// SPDX-License-Identifier: Apache-2.0
// Lion (arXiv 2302.06675), as in optax:
//   direction = sign(b1 mu + (1 - b1) g)
//   mu = b2' mu + (1 - b2) g
// A bfloat16 mu is rounded only when it is stored. b2' is b2 rounded to the type of mu.
#pragma once

#include "kernels/apply_update.hpp"

namespace kernels {

struct LionUpdate {
  static constexpr Op op = Op::lion_update;
  Update update;
  View mu;                    // f32 or bf16 [count]
  float keep1 = 0, add1 = 0;  // b1, 1 - b1
  float keep2 = 0, add2 = 0;  // b2', 1 - b2
};
size_t cuda_scratch(const LionUpdate&);

inline void check(const LionUpdate& a) {
  check(a.update);
  CHECK(a.mu.type == DType::f32 || a.mu.type == DType::bf16,
        "lion_update: mu holds {}, must be f32 or bf16", name_of(a.mu.type));
  CHECK(a.mu.count == a.update.count());
}

inline Cost cost(const LionUpdate& a) {
  return {10 * a.update.count(), 12 * a.update.count() + 2 * a.mu.bytes()};
}

}  // namespace kernels
