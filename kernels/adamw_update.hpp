// SPDX-License-Identifier: Apache-2.0
// Adam with decoupled weight decay, like optax's scale_by_adam:
//   mu = b1' mu + (1 - b1) g
//   nu = b2 nu + (1 - b2) g^2
//   direction = (mu / c1) / (sqrt(nu / c2 + eps_root) + eps)
// With nu_max (amsgrad), nu_max = max(nu_max, nu) takes the place of nu in the direction.
//
// With divides_first, it is PyTorch's RMSprop, which divides before it forms the momentum:
//   nu = b2 nu + (1 - b2) g^2, centre = centre + (1 - b2) (g - centre)
//   quotient = g / (sqrt(nu - centre^2) + eps)
//   direction = mu = b1' mu + quotient
// A missing centre counts as 0. Without mu the quotient is the direction. nu - centre^2 becomes 0
// if rounding makes it negative.
//
// A bfloat16 mu is rounded only when it is stored. b1' is b1 rounded to the type of mu.
#pragma once

#include "kernels/apply_update.hpp"

namespace kernels {

struct AdamwUpdate {
  static constexpr Op op = Op::adamw_update;
  Update update;
  View mu;                    // f32 or bf16 [count]
  View nu;                    // f32 [count]
  float keep1 = 0, add1 = 0;  // b1', 1 - b1
  float keep2 = 0, add2 = 0;  // b2, 1 - b2
  float correction1 = 1;      // c1 = 1 - b1^step
  float correction2 = 1;      // c2 = 1 - b2^step
  float eps = 0, eps_root = 0;
  View nu_max{};  // optional f32 [count]
  bool divides_first = false;
  View centre{};  // divides_first: optional f32 [count]
};
size_t cuda_scratch(const AdamwUpdate&);

inline void check(const AdamwUpdate& a) {
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

inline Cost cost(const AdamwUpdate& a) {
  return {14 * a.update.count(), 12 * a.update.count() + 2 * (a.mu.bytes() + a.nu.bytes() +
                                                              a.nu_max.bytes() + a.centre.bytes())};
}

}  // namespace kernels
