// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the update with momentum.
#include "kernels/momentum_update.hpp"

namespace kernels {

void check(const MomentumUpdate& a) {
  check(a.update);
  CHECK(a.trace.type == DType::f32 || a.trace.type == DType::bf16,
        "momentum_update: trace holds {}, must be f32 or bf16", name_of(a.trace.type));
  CHECK(a.trace.count == a.update.count());
}

Cost cost(const MomentumUpdate& a) {
  return {5 * a.update.count(), 12 * a.update.count() + 2 * a.trace.bytes()};
}

}  // namespace kernels
