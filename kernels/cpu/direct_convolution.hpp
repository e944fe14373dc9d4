// SPDX-License-Identifier: Apache-2.0
// Outputs of convolutions with large windows, in tiles that stay in registers.
#pragma once

#include "kernels/convolution.hpp"

namespace kernels {

// True if this CPU can run tiles, and they are faster than oneDNN. Operands and results are f32.
bool runs_directly(const ConvolutionForward& a);
// Each output is summed over the window's pixels in order, and over the channels of each.
void run_directly(const ConvolutionForward& a, Queue& queue);

}  // namespace kernels
