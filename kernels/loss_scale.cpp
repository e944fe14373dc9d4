// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the dynamic loss scale.
#include "kernels/loss_scale.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const LossScale& a) {
  need_view(a.op, "decision", a.decision, DType::f32, {3});
  need_view(a.op, "norm", a.norm, DType::f64, {1});
  need_view(a.op, "state", a.state, DType::f32, {3});
  allow_view(a.op, "largest", a.largest, DType::f64, {a.largest.count});
}

Cost cost(const LossScale&) { return {8, 32}; }

}  // namespace kernels
