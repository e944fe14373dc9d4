#include "nn/layers.hpp"

namespace nn {

kernels::Gemm Linear::product(Context& ctx, View x, Rows rows, int64_t j, View y, View residual, View gelu) const {
  return {.c = rows.slice(ctx, j, y, out),
          .a = rows.slice(ctx, j, x, in),
          .b = ctx.weight_operand(kernel),
          .bias = bias < 0 ? View{} : ctx.weight(bias),
          .residual = rows.slice(ctx, j, residual, out),
          .m = rows.size(ctx, j), .n = out, .k = in,
          .gelu = rows.slice(ctx, j, gelu, out)};
}

kernels::Gemm Linear::input_product(Context& ctx, View dy, Rows rows, int64_t j, View dx, Write dx_write, View gelu_of) const {
  return {.c = rows.slice(ctx, j, dx, in), .a = rows.slice(ctx, j, dy, out), .b = ctx.weight_operand(kernel),
          .m = rows.size(ctx, j), .n = in, .k = out, .trans_b = true, .write = dx_write,
          .gelu_of = rows.slice(ctx, j, gelu_of, in)};
}

void Linear::forward(Context& ctx, View x, Rows rows, View y, View residual, View gelu) const {
  device::Arena::Scope scope(ctx.arena);
  View a = ctx.operand(x);
  for (int64_t j = 0; j < ctx.slices; ++j) ctx.run(product(ctx, a, rows, j, y, residual, gelu));
}

void Linear::backward(Context& ctx, View dy, View x, Rows rows, View dx, Write dx_write) const {
  device::Arena::Scope scope(ctx.arena);
  View d = ctx.operand(dy);
  for (int64_t j = 0; j < ctx.slices && !dx.none(); ++j) ctx.run(input_product(ctx, d, rows, j, dx, dx_write));
  parameter_gradients(ctx, dy, d, x, rows);
}

void Linear::parameter_gradients(Context& ctx, View dy, View d, View x, Rows rows) const {
  device::Arena::Scope scope(ctx.arena);
  if (!ctx.gradient(kernel).view.none()) {
    View a = ctx.operand(x);
    sum_over_slices(ctx, {kernel}, [&](int64_t j, const auto& t) {
      ctx.run(kernels::Gemm{.c = t[0].view, .a = rows.slice(ctx, j, a, in), .b = rows.slice(ctx, j, d, out),
                            .m = in, .n = out, .k = rows.size(ctx, j), .trans_a = true, .write = t[0].write});
    });
  }
  if (!ctx.gradient(bias).view.none())
    sum_over_slices(ctx, {bias}, [&](int64_t j, const auto& t) {
      ctx.run(kernels::ColumnSum{.out = t[0].view, .x = rows.slice(ctx, j, dy, out), .m = rows.size(ctx, j), .n = out,
                                 .write = t[0].write});
    });
}

}  // namespace nn
