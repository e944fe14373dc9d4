// SPDX-License-Identifier: Apache-2.0
// Convolution of images with a square grid of weights, and its two gradients (ssl.md 1.1).
//
// Images are [batch, height, width, channels]. Weights are [out, in / groups, kernel_height,
// kernel_width], as torchvision names them. Group g of the output channels sees group g of the
// input channels only.
//
// Operands (x and weight, dy and weight, x and dy) are both f32, both bf16 or (on GPUs) both f16.
// Sums of products are f32. Results that are images are f32 or of the operands' type; gradients of
// weights are f32. (cuDNN rounds them to the operands' type first if the number of channels is not
// a multiple of 8, as in RGB images.) On GPUs f32 operands are rounded to tf32 if the queue's
// tf32() is true. CPUs without bf16 instructions widen bf16 operands and round the same values.
//
// An image's result does not depend on other images, except for the gradient of weights, which sums
// over all images of the call. With Queue::fixed_order() no result depends on the number of
// threads. A call then sees one slice.
#pragma once

#include "kernels/check_views.hpp"
#include "kernels/gemm.hpp"
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

inline void check_convolution_shape(Op op, const ConvolutionShape& s) {
  check_window(op, s.window, false);
  need_size(op, "in", s.in, 1);
  need_size(op, "out", s.out, 1);
  need_size(op, "groups", s.groups, 1);
  CHECK(s.in % s.groups == 0 && s.out % s.groups == 0,
        "{}: {} groups do not divide {} input and {} output channels", name_of(op), s.groups, s.in,
        s.out);
}

inline void need_convolution_images(Op op, const char* name, const View& view, DType type,
                                    const Window& w, bool out, int64_t channels) {
  need_view(op, name, view, type,
            {w.batch, out ? w.out_height() : w.height, out ? w.out_width() : w.width, channels});
}

inline void need_convolution_weights(Op op, const char* name, const View& view, DType type,
                                     const ConvolutionShape& s) {
  need_view(op, name, view, type,
            {s.out, s.in / s.groups, s.window.kernel_height, s.window.kernel_width});
}

// Returns the type that both operands of a convolution have, from one of them.
inline DType convolution_operands(const View& view) {
  return view.type == DType::bf16 || view.type == DType::f16 ? view.type : DType::f32;
}
// Returns the type that a result may have: f32, or the type of the operands.
inline DType convolution_result(const View& result, DType operands) {
  return result.type == operands ? operands : DType::f32;
}

inline void check(const ConvolutionForward& a) {
  const ConvolutionShape& s = a.shape;
  const DType type = convolution_operands(a.x);
  check_convolution_shape(a.op, s);
  need_convolution_images(a.op, "x", a.x, type, s.window, false, s.in);
  need_convolution_weights(a.op, "weight", a.weight, type, s);
  need_convolution_images(a.op, "y", a.y, convolution_result(a.y, type), s.window, true, s.out);
}
inline Cost cost(const ConvolutionForward& a) {
  return {a.shape.flops(), a.x.bytes() + a.weight.bytes() + a.y.bytes()};
}

inline void check(const ConvolutionBackwardData& a) {
  const ConvolutionShape& s = a.shape;
  const DType type = convolution_operands(a.dy);
  check_convolution_shape(a.op, s);
  need_convolution_images(a.op, "dy", a.dy, type, s.window, true, s.out);
  need_convolution_weights(a.op, "weight", a.weight, type, s);
  need_convolution_images(a.op, "dx", a.dx, convolution_result(a.dx, type), s.window, false, s.in);
}
inline Cost cost(const ConvolutionBackwardData& a) {
  const int64_t dx = a.dx.bytes() * (a.write == Write::accumulate ? 2 : 1);
  return {a.shape.flops(), a.dy.bytes() + a.weight.bytes() + dx};
}

inline void check(const ConvolutionBackwardWeights& a) {
  const ConvolutionShape& s = a.shape;
  const DType type = convolution_operands(a.x);
  check_convolution_shape(a.op, s);
  need_convolution_images(a.op, "x", a.x, type, s.window, false, s.in);
  need_convolution_images(a.op, "dy", a.dy, type, s.window, true, s.out);
  need_convolution_weights(a.op, "dw", a.dw, DType::f32, s);
}
inline Cost cost(const ConvolutionBackwardWeights& a) {
  const int64_t dw = a.dw.bytes() * (a.write == Write::accumulate ? 2 : 1);
  return {a.shape.flops(), a.x.bytes() + a.dy.bytes() + dw};
}

// Returns the matrix product that computes a convolution with shape.is_product().
inline Gemm product_of(const ConvolutionForward& a) {
  return {.c = a.y,
          .a = a.x,
          .b = a.weight,
          .m = a.shape.window.pixels(),
          .n = a.shape.out,
          .k = a.shape.in,
          .trans_b = true};
}
inline Gemm product_of(const ConvolutionBackwardData& a) {
  return {.c = a.dx,
          .a = a.dy,
          .b = a.weight,
          .m = a.shape.window.pixels(),
          .n = a.shape.in,
          .k = a.shape.out,
          .write = a.write};
}
inline Gemm product_of(const ConvolutionBackwardWeights& a) {
  return {.c = a.dw,
          .a = a.dy,
          .b = a.x,
          .m = a.shape.out,
          .n = a.shape.in,
          .k = a.shape.window.pixels(),
          .trans_a = true,
          .write = a.write};
}

}  // namespace kernels
