// SPDX-License-Identifier: Apache-2.0
#include "nn/convolution.hpp"

namespace nn {

ImageSize Convolution::output_size(const ImageSize& x) const {
  const kernels::Window window = shape(1, x).window;
  return {x.per_example, window.out_height(), window.out_width()};
}

kernels::ConvolutionShape Convolution::shape(int64_t examples, const ImageSize& x) const {
  return {.window = {.batch = examples * x.per_example,
                     .height = x.height,
                     .width = x.width,
                     .kernel_height = kernel,
                     .kernel_width = kernel,
                     .stride = stride,
                     .padding = padding},
          .in = in,
          .out = out,
          .groups = groups};
}

void Convolution::forward(Context& ctx, View x, const ImageSize& size, View y) const {
  device::Arena::Scope scope(ctx.arena);
  const View a = ctx.operand(x);
  const kernels::ConvolutionShape one = shape(ctx.batch / ctx.slices, size);
  for (int64_t j = 0; j < ctx.slices; ++j)
    ctx.run(kernels::ConvolutionForward{.y = y.slice(j * one.outputs(), one.outputs()),
                                        .x = a.slice(j * one.inputs(), one.inputs()),
                                        .weight = ctx.weight_operand(weight),
                                        .shape = one});
  if (bias < 0) return;
  ctx.run(kernels::AddTable{
      .y = y, .x = y, .table = ctx.weight(bias), .rows = y.count / out, .width = out, .length = 1});
}

void Convolution::backward_data(Context& ctx, View dy, const ImageSize& size, View dx,
                                Write write) const {
  device::Arena::Scope scope(ctx.arena);
  const View d = ctx.operand(dy);
  const kernels::ConvolutionShape one = shape(ctx.batch / ctx.slices, size);
  for (int64_t j = 0; j < ctx.slices; ++j)
    ctx.run(kernels::ConvolutionBackwardData{.dx = dx.slice(j * one.inputs(), one.inputs()),
                                             .dy = d.slice(j * one.outputs(), one.outputs()),
                                             .weight = ctx.weight_operand(weight),
                                             .shape = one,
                                             .write = write});
}

void Convolution::backward_weights(Context& ctx, std::span<const Passed> all) const {
  if (ctx.gradient(weight).view.none() && ctx.gradient(bias).view.none()) return;
  sum_over_slices(ctx, {weight, bias}, [&](int64_t j, const auto& targets) {
    bool first = true;
    for (const Passed& p : all) {
      device::Arena::Scope scope(ctx.arena);
      const kernels::ConvolutionShape one = shape(ctx.batch / ctx.slices, p.size);
      const View dy = p.dy.slice(j * one.outputs(), one.outputs());
      auto write_of = [&](const auto& target) { return first ? target.write : Write::accumulate; };
      if (!targets[0].view.none())
        ctx.run(kernels::ConvolutionBackwardWeights{
            .dw = targets[0].view,
            .x = ctx.operand(p.x.slice(j * one.inputs(), one.inputs())),
            .dy = ctx.operand(dy),
            .shape = one,
            .write = write_of(targets[0])});
      if (!targets[1].view.none())
        ctx.run(kernels::ColumnSum{.out = targets[1].view,
                                   .x = dy,
                                   .m = one.window.positions(),
                                   .n = out,
                                   .write = write_of(targets[1])});
      first = false;
    }
  });
}

}  // namespace nn
