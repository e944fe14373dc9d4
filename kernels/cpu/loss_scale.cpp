// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the dynamic loss scale.
#include "kernels/loss_scale.hpp"

namespace kernels {

void run_cpu(const LossScale& a, Queue&) {
  step_loss_scale(a.decision.f32(), a.norm.f64(), a.state.f32(), a.bound, a.rule);
}

}  // namespace kernels
