#include "kernels/gemm.hpp"
#include "nn/layers.hpp"

namespace nn {

void Linear::forward(Context& ctx, View x, int64_t rows, View y, View residual) const {
  device::Arena::Scope scope(ctx.arena);
  int64_t m = rows / ctx.slices;
  View a = ctx.operand(x), b = ctx.operand(ctx.weight(kernel));
  for (int64_t j = 0; j < ctx.slices; ++j)
    ctx.run(kernels::Gemm{.c = y.slice(j * m * out, m * out),
                          .a = a.slice(j * m * in, m * in),
                          .b = b,
                          .bias = bias < 0 ? View{} : ctx.weight(bias),
                          .residual = residual.none() ? View{} : residual.slice(j * m * out, m * out),
                          .m = m, .n = out, .k = in});
}

void Linear::backward(Context& ctx, View dy, View x, int64_t rows, View dx, Write dx_write) const {
  device::Arena::Scope scope(ctx.arena);
  int64_t m = rows / ctx.slices;
  View d = ctx.operand(dy);
  if (!dx.none()) {
    device::Arena::Scope weights(ctx.arena);
    View b = ctx.operand(ctx.weight(kernel));
    for (int64_t j = 0; j < ctx.slices; ++j)
      ctx.run(kernels::Gemm{.c = dx.slice(j * m * in, m * in), .a = d.slice(j * m * out, m * out), .b = b,
                            .m = m, .n = in, .k = out, .trans_b = true, .write = dx_write});
  }
  if (!ctx.gradient(kernel).view.none()) {
    View a = ctx.operand(x);
    sum_over_slices(ctx, {kernel}, [&](int64_t j, const auto& t) {
      ctx.run(kernels::Gemm{.c = t[0].view, .a = a.slice(j * m * in, m * in), .b = d.slice(j * m * out, m * out),
                            .m = in, .n = out, .k = m, .trans_a = true, .write = t[0].write});
    });
  }
  if (!ctx.gradient(bias).view.none())
    sum_over_slices(ctx, {bias}, [&](int64_t j, const auto& t) {
      ctx.run(kernels::ColumnSum{.out = t[0].view, .x = dy.slice(j * m * out, m * out), .m = m, .n = out, .write = t[0].write});
    });
}

}  // namespace nn
