// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the dynamic loss scale.
#include "kernels/loss_scale.hpp"

namespace kernels {

void run_cpu(const LossScale& a, Queue&) { step_loss_scale(LossScaleNumbers::of(a)); }

}  // namespace kernels
