// SPDX-License-Identifier: Apache-2.0
#include "nn/layers.hpp"

namespace nn {

StreamGradient::StreamGradient(Context& ctx, View stream, int64_t width, bool with_sums)
    : d(stream) {
  if (!ctx.on_gpu()) return;
  if (ctx.activation() != d.type) rounded = ctx.make_activation(false, d.count);
  if (with_sums) sums = ctx.arena.temporary(ctx.slices * width);
}

kernels::Gemm Linear::product(Context& ctx, View x, Rows rows, int64_t j, View y, View residual,
                              View gelu) const {
  return {.c = rows.slice(ctx, j, y, out),
          .a = rows.slice(ctx, j, x, row_of_x(ctx)),
          .b = ctx.weight_operand(kernel),
          .bias = bias < 0                       ? View{}
                  : y.type == device::DType::f32 ? ctx.weight(bias)
                                                 : ctx.weight_operand(bias),
          .residual = rows.slice(ctx, j, residual, out),
          .m = rows.size(ctx, j),
          .n = out,
          .k = in,
          .trans_b = rows_are_outputs,
          .lda = row_of_x(ctx),
          .gelu = rows.slice(ctx, j, gelu, out)};
}

kernels::Gemm Linear::input_product(Context& ctx, View dy, Rows rows, int64_t j, View dx,
                                    Write dx_write, View gelu_of) const {
  return {.c = rows.slice(ctx, j, dx, in),
          .a = rows.slice(ctx, j, dy, out),
          .b = ctx.weight_operand(kernel),
          .m = rows.size(ctx, j),
          .n = in,
          .k = out,
          .trans_b = !rows_are_outputs,
          .write = dx_write,
          .gelu_of = rows.slice(ctx, j, gelu_of, in)};
}

void Linear::forward(Context& ctx, View x, Rows rows, View y, View residual, View gelu) const {
  device::Arena::Scope scope(ctx.arena);
  View a = ctx.operand(x);
  for (int64_t j = 0; j < ctx.slices; ++j) ctx.run(product(ctx, a, rows, j, y, residual, gelu));
}

void Linear::backward(Context& ctx, const StreamGradient& dy, View x, Rows rows, View dx,
                      Write dx_write) const {
  device::Arena::Scope scope(ctx.arena);
  View d = dy.operand(ctx);
  for (int64_t j = 0; j < ctx.slices && !dx.none(); ++j)
    ctx.run(input_product(ctx, d, rows, j, dx, dx_write));
  parameter_gradients(ctx, d, x, rows, dy.sums);
}

void Linear::parameter_gradients(Context& ctx, std::span<const Passed> all) const {
  device::Arena::Scope scope(ctx.arena);
  auto operand = [&](const Passed& p) {
    return ctx.gradient(kernel).view.none() ? View{} : ctx.operand(p.x);
  };
  // If images have one size, as in most models, a step allocates nothing.
  const View first = operand(all[0]);
  std::vector<View> more;
  for (const Passed& p : all.subspan(1)) more.push_back(operand(p));
  sum_over_slices(ctx, {kernel, bias}, [&](int64_t j, const auto& targets) {
    for (size_t i = 0; i < all.size(); ++i) {
      const Passed& p = all[i];
      auto [of_kernel, of_bias] = targets;
      if (i > 0) of_kernel.write = of_bias.write = Write::accumulate;
      const bool summed = !p.sums.none() && !of_bias.view.none();
      parameter_gradients(
          ctx, of_kernel, summed ? Target{} : of_bias, p.rows.slice(ctx, j, p.d, out),
          p.rows.slice(ctx, j, i == 0 ? first : more[i - 1], row_of_x(ctx)), p.rows.size(ctx, j));
      if (!summed) continue;
      const View b = of_bias.view, sum = p.sums.slice(j * out, out);
      if (of_bias.write == Write::accumulate)
        ctx.run(kernels::Add{.y = b, .a = b, .b = sum});
      else
        ctx.run(kernels::Copy{.y = b, .x = sum});
    }
  });
}

void Linear::parameter_gradients(Context& ctx, const Target& kernel_target,
                                 const Target& bias_target, View d, View x, int64_t rows) const {
  const kernels::ColumnSum sums{
      .out = bias_target.view, .x = d, .m = rows, .n = out, .write = bias_target.write};
  if (rows_are_outputs) {
    if (!kernel_target.view.none())
      ctx.run(kernels::Gemm{.c = kernel_target.view,
                            .a = d,
                            .b = x,
                            .m = out,
                            .n = in,
                            .k = rows,
                            .trans_a = true,
                            .write = kernel_target.write,
                            .ldb = row_of_x(ctx)});
    if (!bias_target.view.none()) ctx.run(sums);
    return;
  }
  const kernels::Gemm product{.c = kernel_target.view,
                              .a = x,
                              .b = d,
                              .m = in,
                              .n = out,
                              .k = rows,
                              .trans_a = true,
                              .write = kernel_target.write,
                              .lda = row_of_x(ctx)};
  if (!kernel_target.view.none() && !bias_target.view.none())
    return kernels::run_with_sums(product, sums, ctx.queue);
  if (!kernel_target.view.none()) ctx.run(product);
  if (!bias_target.view.none()) ctx.run(sums);
}

}  // namespace nn
