// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of updates in general, and of plain gradient descent.
#include "kernels/apply_update.hpp"

namespace kernels {

void check(const Clip& a) {
  CHECK(a.decided.none() || (a.decided.type == DType::f32 && a.decided.count == 3),
        "a clip decision must be three f32");
}

void check(const Update& a) {
  check(a.clip);
  CHECK(a.weights.type == DType::f32 && a.gradient.type == DType::f32,
        "weights and gradients must be f32");
  CHECK(a.weights.count == a.gradient.count, "{} weights have {} gradients", a.weights.count,
        a.gradient.count);
  CHECK(a.sums.type == DType::f64 && a.sums.count == 2);
  CHECK(a.inner.trust.none() || (a.inner.trust.type == DType::f32 && a.inner.trust.count == 2),
        "a trust ratio must be two f32");
}

void check(const ApplyUpdate& a) { check(a.update); }

Cost cost(const ApplyUpdate& a) { return {3 * a.update.count(), 12 * a.update.count()}; }

}  // namespace kernels
