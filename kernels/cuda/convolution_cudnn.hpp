// SPDX-License-Identifier: Apache-2.0
// Convolutions by cuDNN, and their weights in cuDNN's order.
#pragma once

#include <string>

#include "kernels/convolution.hpp"

namespace kernels {

// Returns the most bytes of workspace that a plan of cuDNN may need.
int64_t convolution_workspace(const ConvolutionShape& shape, DType operands);
// Places within the scratch of a call: cuDNN's workspace comes first, then weights, then an image
// of `floats` elements.
struct ConvolutionScratch {
  ConvolutionScratch(const ConvolutionShape& shape, DType weights_type, int64_t floats,
                     int64_t workspace);
  int64_t weights, image, bytes;  // offsets in bytes; size of all
};

// Returns cuDNN's reason to make no plan for the device that `device` describes (JSON), or "" if it
// makes one. Serves tests without a GPU.
std::string cudnn_plan_problem(ConvolutionSide result, const ConvolutionShape& shape,
                               DType operands, DType result_type, Write write,
                               const std::string& device);

// cuDNN's kernels for images with channels last take weights with channels last:
// [out, kernel_height, kernel_width, in / groups].
void put_channels_last(void* to, const View& weights, const ConvolutionShape& shape, Queue& queue);
// Writes, or adds, a gradient of weights with channels last to `dw`. `from` may be narrow.
void take_channels_last(const View& dw, const View& from, const ConvolutionShape& shape,
                        Write write, Queue& queue);
// Writes, or adds, `from`, which may be narrow, to `to`, which is f32.
void take_floats(const View& to, const View& from, Write write, Queue& queue);

}  // namespace kernels
