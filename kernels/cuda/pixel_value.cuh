// SPDX-License-Identifier: Apache-2.0
// The value of a byte in kernels, with the roundings that PixelRange states.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/pixel_range.hpp"

namespace kernels {

// Selects by comparisons: an index that is not constant would put the array into local memory.
__device__ inline float pixel_value(const PixelRange& r, float byte, int channel) {
  const float all = __fadd_rn(r.to_low, __fmul_rn((byte - r.low) / r.width, r.to_width));
  const float mean = channel == 0 ? r.mean[0] : channel == 1 ? r.mean[1] : r.mean[2];
  const float deviation = channel == 0   ? r.deviation[0]
                          : channel == 1 ? r.deviation[1]
                                         : r.deviation[2];
  return (all - mean) / deviation;
}

}  // namespace kernels
