// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the updates of Adam and RMSprop.
#include "kernels/adamw_update.hpp"

namespace kernels {

void check(const AdamwUpdate& a) {
  check(a.update);
  const int64_t count = a.update.count();
  CHECK(a.divides_first || a.centre.none());
  if (a.divides_first) {
    for (const View& v : {a.mu, a.centre})
      CHECK(v.none() || (v.count == count && v.type == DType::f32));
    CHECK(a.nu_max.none() && a.eps_root == 0 && a.nu.count == count && a.nu.type == DType::f32);
    return;
  }
  CHECK(a.mu.type == DType::f32 || a.mu.type == DType::bf16,
        "adamw_update: mu holds {}, must be f32 or bf16", name_of(a.mu.type));
  CHECK(a.mu.count == count && a.nu.count == count && a.nu.type == DType::f32);
  CHECK(a.nu_max.none() || (a.nu_max.count == count && a.nu_max.type == DType::f32));
}

Cost cost(const AdamwUpdate& a) {
  return {14 * a.update.count(), 12 * a.update.count() + 2 * (a.mu.bytes() + a.nu.bytes() +
                                                              a.nu_max.bytes() + a.centre.bytes())};
}

}  // namespace kernels
