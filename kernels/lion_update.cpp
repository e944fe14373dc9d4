// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of Lion's update.
#include "kernels/lion_update.hpp"

namespace kernels {

void check(const LionUpdate& a) {
  check(a.update);
  CHECK(a.mu.type == DType::f32 || a.mu.type == DType::bf16,
        "lion_update: mu holds {}, must be f32 or bf16", name_of(a.mu.type));
  CHECK(a.mu.count == a.update.count());
}

Cost cost(const LionUpdate& a) {
  return {10 * a.update.count(), 12 * a.update.count() + 2 * a.mu.bytes()};
}

}  // namespace kernels
