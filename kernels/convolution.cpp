// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of convolutions.
#include "kernels/convolution.hpp"

#include "kernels/check_views.hpp"
#include "kernels/gemm.hpp"

namespace kernels {
namespace {

void check_shape(Op op, const ConvolutionShape& s) {
  check_window(op, s.window, false);
  need_size(op, "in", s.in, 1);
  need_size(op, "out", s.out, 1);
  need_size(op, "groups", s.groups, 1);
  CHECK(s.in % s.groups == 0 && s.out % s.groups == 0,
        "{}: {} groups do not divide {} input and {} output channels", name_of(op), s.groups, s.in,
        s.out);
}

void need_images(Op op, const char* name, const View& view, DType type, const Window& w, bool out,
                 int64_t channels) {
  need_view(op, name, view, type,
            {w.batch, out ? w.out_height() : w.height, out ? w.out_width() : w.width, channels});
}

void need_weights(Op op, const char* name, const View& view, DType type,
                  const ConvolutionShape& s) {
  need_view(op, name, view, type,
            {s.out, s.in / s.groups, s.window.kernel_height, s.window.kernel_width});
}

// The type of operands, of which `view` is one.
DType operand_type(const View& view) {
  return view.type == DType::bf16 || view.type == DType::f16 ? view.type : DType::f32;
}
// The type of a result: f32, or that of the operands.
DType result_type(const View& result, DType operands) {
  return result.type == operands ? operands : DType::f32;
}

}  // namespace

void check(const ConvolutionForward& a) {
  const ConvolutionShape& s = a.shape;
  const DType type = operand_type(a.x);
  check_shape(a.op, s);
  need_images(a.op, "x", a.x, type, s.window, false, s.in);
  need_weights(a.op, "weight", a.weight, type, s);
  need_images(a.op, "y", a.y, result_type(a.y, type), s.window, true, s.out);
}
Cost cost(const ConvolutionForward& a) {
  return {a.shape.flops(), a.x.bytes() + a.weight.bytes() + a.y.bytes()};
}

void check(const ConvolutionBackwardData& a) {
  const ConvolutionShape& s = a.shape;
  const DType type = operand_type(a.dy);
  check_shape(a.op, s);
  need_images(a.op, "dy", a.dy, type, s.window, true, s.out);
  need_weights(a.op, "weight", a.weight, type, s);
  need_images(a.op, "dx", a.dx, result_type(a.dx, type), s.window, false, s.in);
}
Cost cost(const ConvolutionBackwardData& a) {
  const int64_t dx = a.dx.bytes() * (a.write == Write::accumulate ? 2 : 1);
  return {a.shape.flops(), a.dy.bytes() + a.weight.bytes() + dx};
}

void check(const ConvolutionBackwardWeights& a) {
  const ConvolutionShape& s = a.shape;
  const DType type = operand_type(a.x);
  check_shape(a.op, s);
  need_images(a.op, "x", a.x, type, s.window, false, s.in);
  need_images(a.op, "dy", a.dy, type, s.window, true, s.out);
  need_weights(a.op, "dw", a.dw, DType::f32, s);
}
Cost cost(const ConvolutionBackwardWeights& a) {
  const int64_t dw = a.dw.bytes() * (a.write == Write::accumulate ? 2 : 1);
  return {a.shape.flops(), a.x.bytes() + a.dy.bytes() + dw};
}

Gemm product_of(const ConvolutionForward& a) {
  return {.c = a.y,
          .a = a.x,
          .b = a.weight,
          .m = a.shape.window.pixels(),
          .n = a.shape.out,
          .k = a.shape.in,
          .trans_b = true};
}
Gemm product_of(const ConvolutionBackwardData& a) {
  return {.c = a.dx,
          .a = a.dy,
          .b = a.weight,
          .m = a.shape.window.pixels(),
          .n = a.shape.in,
          .k = a.shape.out,
          .write = a.write};
}
Gemm product_of(const ConvolutionBackwardWeights& a) {
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
