// SPDX-License-Identifier: Apache-2.0
// Convolutions of one channel per group (ConvNeXt), with the same bits on every CPU. An output is a
// chain over the taps of the window, or over positions, like that of portable_convolution.cpp.
// Vectors hold different channels.
#pragma once

#include "kernels/convolution.hpp"

namespace kernels {

bool is_depthwise(const ConvolutionShape& s);
// The shape must be depthwise.
void run_depthwise(const ConvolutionForward& a, Queue& queue);
void run_depthwise(const ConvolutionBackwardData& a, Queue& queue);
void run_depthwise(const ConvolutionBackwardWeights& a, Queue& queue);

}  // namespace kernels
