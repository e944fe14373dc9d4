// SPDX-License-Identifier: Apache-2.0
// Convolution of images with a square grid of weights, and its two gradients (ssl.md 1.1).
//
// Images are [batch, height, width, channels]. Weights are [out, in / groups, kernel_height,
// kernel_width], as torchvision names them. Group g of the output channels sees group g of the
// input channels only.
//
// Operands (x and weight, dy and weight, x and dy) are both f32, both bf16 or (on GPUs) both f16.
// Sums of products are f32. Results that are images are f32 or of the operands' type; gradients of
// weights are f32. (cuDNN rounds them to the operands' type first if channels are no multiples of
// 8, as those of colour images.) On GPUs f32 operands are rounded to tf32 if the queue's tf32() is
// true. CPUs without bf16 instructions widen bf16 operands and round the same values.
//
// An image's result does not depend on other images, except for the gradient of weights, which sums
// over all images of the call. With Queue::fixed_order() no result depends on the number of
// threads. A call then sees one slice.
#pragma once

#include "kernels/window.hpp"

namespace kernels {

struct ConvolutionShape {
  Window window;
  int64_t in = 0, out = 0;  // channels
  int64_t groups = 1;

  int64_t weights() const {
    return out * (in / groups) * window.kernel_height * window.kernel_width;
  }
  int64_t inputs() const { return window.pixels() * in; }
  int64_t outputs() const { return window.positions() * out; }
  // Multiply-adds count as two, those with padding included, as usual for convolutions.
  int64_t flops() const { return 2 * window.positions() * weights(); }
  // True if the convolution is a product of the matrix of pixels with the matrix of weights.
  bool is_product() const {
    return window.kernel_height == 1 && window.kernel_width == 1 && window.stride == 1 &&
           window.padding == 0 && groups == 1;
  }
  auto operator<=>(const ConvolutionShape&) const = default;
};

// The tensor that a convolution computes from the other two.
enum class ConvolutionSide { outputs, inputs, weights };

struct ConvolutionForward {
  static constexpr Op op = Op::convolution_forward;
  View y;       // [batch, out_height, out_width, out]
  View x;       // [batch, height, width, in]
  View weight;  // [out, in / groups, kernel_height, kernel_width]
  ConvolutionShape shape;
};

struct ConvolutionBackwardData {
  static constexpr Op op = Op::convolution_backward_data;
  View dx;      // [batch, height, width, in]
  View dy;      // [batch, out_height, out_width, out]
  View weight;  // [out, in / groups, kernel_height, kernel_width]
  ConvolutionShape shape;
  // accumulate: dx = dx + the gradient; a narrow dx is rounded once, after the sum
  Write write = Write::overwrite;
};

struct ConvolutionBackwardWeights {
  static constexpr Op op = Op::convolution_backward_weights;
  View dw;  // f32 [out, in / groups, kernel_height, kernel_width]
  View x;   // [batch, height, width, in]
  View dy;  // [batch, out_height, out_width, out]
  ConvolutionShape shape;
  Write write = Write::overwrite;
};

// Returns the matrix product that computes a convolution with shape.is_product().
Gemm product_of(const ConvolutionForward&);
Gemm product_of(const ConvolutionBackwardData&);
Gemm product_of(const ConvolutionBackwardWeights&);

// Makes what run_cpu keeps for the shape. The data need not exist.
void prepare_cpu(const ConvolutionForward&, const Queue&);
void prepare_cpu(const ConvolutionBackwardData&, const Queue&);
void prepare_cpu(const ConvolutionBackwardWeights&, const Queue&);

// Registers products for search_gemms (gemm_search.hpp).
void prepare_cuda(const ConvolutionForward&, const Queue&);
void prepare_cuda(const ConvolutionBackwardData&, const Queue&);
void prepare_cuda(const ConvolutionBackwardWeights&, const Queue&);

size_t cuda_scratch(const ConvolutionForward&);
size_t cuda_scratch(const ConvolutionBackwardData&);
size_t cuda_scratch(const ConvolutionBackwardWeights&);

}  // namespace kernels
