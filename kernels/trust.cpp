// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the ratios of LARC and LARS.
#include "kernels/trust.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const TrustSums& a) {
  check(a.clip);
  need_view(a.op, "sums", a.sums, DType::f64, {2});
  need_view(a.op, "weights", a.weights, DType::f32, {a.weights.count});
  need_view(a.op, "gradient", a.gradient, DType::f32, {a.weights.count});
}

Cost cost(const TrustSums& a) { return {6 * a.weights.count, 8 * a.weights.count}; }

void check(const TrustRatio& a) {
  need_view(a.op, "trust", a.trust, DType::f32, {2});
  need_view(a.op, "sums", a.sums, DType::f64, {2});
}

Cost cost(const TrustRatio&) { return {6, 24}; }

}  // namespace kernels
