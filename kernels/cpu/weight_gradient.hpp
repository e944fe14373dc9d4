// SPDX-License-Identifier: Apache-2.0
// Gradients of the weights of convolutions, in tiles that stay in registers.
#pragma once

#include "kernels/convolution.hpp"

namespace kernels {

// True if this CPU can run tiles, and they are faster than oneDNN. bf16 needs bf16 instructions.
bool runs_in_tiles(const ConvolutionBackwardWeights& a);
// The shape alone fixes the order of all sums.
void run_in_tiles(const ConvolutionBackwardWeights& a, Queue& queue);

}  // namespace kernels
