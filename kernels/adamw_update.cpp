// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the update of Adam with decoupled weight decay.
#include "kernels/adamw_update.hpp"

namespace kernels {

void check(const AdamwUpdate& a) {
  check(a.update);
  CHECK(a.mu.type == DType::f32 || a.mu.type == DType::bf16,
        "adamw_update: mu holds {}, must be f32 or bf16", name_of(a.mu.type));
  CHECK(a.mu.count == a.update.count() && a.nu.count == a.update.count() &&
        a.nu.type == DType::f32);
  CHECK(a.nu_max.none() || (a.nu_max.count == a.update.count() && a.nu_max.type == DType::f32));
}

Cost cost(const AdamwUpdate& a) {
  return {14 * a.update.count(),
          12 * a.update.count() + 2 * a.mu.bytes() + 2 * a.nu.bytes() + 2 * a.nu_max.bytes()};
}

}  // namespace kernels
