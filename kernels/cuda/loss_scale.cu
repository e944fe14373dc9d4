// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the dynamic loss scale.
#include "kernels/cuda/launch.cuh"
#include "kernels/loss_scale.hpp"

namespace kernels {
namespace {

__global__ void step_scale(LossScaleNumbers a) {
  if (threadIdx.x == 0) step_loss_scale(a);
}

}  // namespace

void run_cuda(const LossScale& a, Queue& queue) {
  launch(step_scale, dim3(1), dim3(32), 0, queue, LossScaleNumbers::of(a));
}

}  // namespace kernels
