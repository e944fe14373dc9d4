// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation.hpp"
#include "kernels/gelu.hpp"
#include "kernels/swiglu.hpp"
#include "nn/layers.hpp"

namespace nn {
namespace {

kernels::Activation kind_of(Gelu gelu) {
  return gelu == Gelu::erf ? kernels::Activation::gelu_erf : kernels::Activation::gelu_quick;
}

}  // namespace

void dropout(Context& ctx, View y, View x, float rate, const char* name, int layer,
             int64_t per_example) {
  ctx.run(kernels::Dropout{.y = y,
                           .x = x,
                           .rate = rate,
                           .stream = ctx.dropout.sub(base::stream_id(name)).sub(uint64_t(layer)),
                           .first = ctx.first_example * per_example});
}

void Mlp::drop(Context& ctx, View h, Rows rows) const {
  if (!drops(ctx)) return;
  CHECK(!rows.cuts, "dropout needs all rows of an example");
  dropout(ctx, h, h, dropout_rate, dropout_name, layer, rows.count / ctx.batch * hidden.out);
}

void Mlp::forward_gated(Context& ctx, View x, Rows rows, const Saved& saved) const {
  {
    device::Arena::Scope scope(ctx.arena);
    const View a = ctx.operand(x);
    for (int64_t j = 0; j < ctx.slices; ++j)
      ctx.run_by_rows({gate.product(ctx, a, rows, j, saved.gate),
                       hidden.product(ctx, a, rows, j, saved.before_gelu)});
  }
  activate(ctx, rows, saved);
}

void Mlp::forward_hidden(Context& ctx, View x, Rows rows, const Saved& saved) const {
  if (gated()) return forward_gated(ctx, x, rows, saved);
  if (gelu != Gelu::tanh) {
    hidden.forward(ctx, x, rows, saved.before_gelu);
    return activate(ctx, rows, saved);
  }
  hidden.forward(ctx, x, rows, saved.before_gelu, {}, saved.after_gelu);
  drop(ctx, saved.after_gelu, rows);
}

void Mlp::forward(Context& ctx, View x, Rows rows, const Saved& saved, View y,
                  View residual) const {
  if (between_products(ctx)) {
    forward_hidden(ctx, x, rows, saved);
    return output.forward(ctx, saved.after_gelu, rows, y, residual);
  }
  device::Arena::Scope scope(ctx.arena);
  const View a = ctx.operand(x), h = ctx.operand(saved.after_gelu);
  for (int64_t j = 0; j < ctx.slices; ++j)
    ctx.run_by_rows({hidden.product(ctx, a, rows, j, saved.before_gelu, {}, saved.after_gelu),
                     output.product(ctx, h, rows, j, y, residual, {})});
}

void Mlp::activate(Context& ctx, Rows rows, const Saved& saved) const {
  if (gated())
    ctx.run(kernels::SwigluForward{
        .y = saved.after_gelu, .gate = saved.gate, .value = saved.before_gelu});
  else if (gelu != Gelu::tanh)
    ctx.run(kernels::ActivationForward{
        .y = saved.after_gelu, .x = saved.before_gelu, .kind = kind_of(gelu)});
  else
    ctx.run(kernels::GeluForward{.y = saved.after_gelu, .x = saved.before_gelu});
  drop(ctx, saved.after_gelu, rows);
}

// dh: the gradient of the hidden layer, used as workspace.
void Mlp::backward_gated(Context& ctx, View dh, View x, Rows rows, const Saved& saved,
                         View dx) const {
  const View dgate = ctx.make_activation(false, dh.count);
  drop(ctx, dh, rows);
  ctx.run(kernels::SwigluBackward{
      .dgate = dgate, .dvalue = dh, .dy = dh, .gate = saved.gate, .value = saved.before_gelu});
  for (int64_t j = 0; j < ctx.slices; ++j)
    ctx.run_by_rows({hidden.input_product(ctx, dh, rows, j, dx, Write::overwrite),
                     gate.input_product(ctx, dgate, rows, j, dx, Write::accumulate)});
  gate.parameter_gradients(ctx, dgate, x, rows);
}

void Mlp::backward(Context& ctx, const StreamGradient& dy, View x, Rows rows, const Saved& saved,
                   View dx) const {
  device::Arena::Scope scope(ctx.arena);
  View dh = ctx.make_activation(false, rows.count * hidden.out), d = dy.operand(ctx);
  auto output_product = [&](int64_t j) {
    return output.input_product(ctx, d, rows, j, dh, Write::overwrite,
                                fused() ? saved.before_gelu : View{});
  };
  auto hidden_product = [&](int64_t j) {
    return hidden.input_product(ctx, dh, rows, j, dx, Write::overwrite);
  };
  if (gated()) {
    for (int64_t j = 0; j < ctx.slices; ++j) ctx.run(output_product(j));
    backward_gated(ctx, dh, x, rows, saved, dx);
  } else if (between_products(
                 ctx)) {  // the mask may follow the derivative, because both are factors
    for (int64_t j = 0; j < ctx.slices; ++j) ctx.run(output_product(j));
    if (gelu != Gelu::tanh)
      ctx.run(kernels::ActivationBackward{
          .dx = dh, .dy = dh, .x = saved.before_gelu, .kind = kind_of(gelu)});
    drop(ctx, dh, rows);
    for (int64_t j = 0; j < ctx.slices; ++j) ctx.run(hidden_product(j));
  } else {
    for (int64_t j = 0; j < ctx.slices; ++j)
      ctx.run_by_rows({output_product(j), hidden_product(j)});
  }
  output.parameter_gradients(ctx, d, saved.after_gelu, rows, dy.sums);
  hidden.parameter_gradients(ctx, dh, x, rows);
}

}  // namespace nn
