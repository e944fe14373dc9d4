#include "kernels/gelu.hpp"
#include "nn/layers.hpp"

namespace nn {

void dropout(Context& ctx, View y, View x, float rate, const char* name, int layer, int64_t per_example) {
  ctx.run(kernels::Dropout{.y = y, .x = x, .rate = rate,
                           .stream = ctx.dropout.sub(base::stream_id(name)).sub(uint64_t(layer)),
                           .first = ctx.first_example * per_example});
}

void Mlp::drop(Context& ctx, View h, Rows rows) const {
  if (!ctx.train || dropout_rate == 0) return;
  CHECK(!rows.cuts, "dropout needs all rows of an example");
  dropout(ctx, h, h, dropout_rate, dropout_name, layer, rows.count / ctx.batch * hidden.out);
}

void Mlp::forward_hidden(Context& ctx, View x, Rows rows, const Saved& saved) const {
  hidden.forward(ctx, x, rows, saved.before_gelu, {}, saved.after_gelu);
  drop(ctx, saved.after_gelu, rows);
}

void Mlp::activate(Context& ctx, Rows rows, const Saved& saved) const {
  ctx.run(kernels::GeluForward{.y = saved.after_gelu, .x = saved.before_gelu});
  drop(ctx, saved.after_gelu, rows);
}

void Mlp::forward_output(Context& ctx, const Saved& saved, Rows rows, View y, View residual) const {
  output.forward(ctx, saved.after_gelu, rows, y, residual);
}

void Mlp::backward(Context& ctx, View dy, View x, Rows rows, const Saved& saved, View dx) const {
  device::Arena::Scope scope(ctx.arena);
  View dh = ctx.make_activation(false, rows.count * hidden.out);
  // Dropout lies between the two, so its mask comes before the derivative: both only multiply.
  output.backward(ctx, dy, saved.after_gelu, rows, dh, Write::overwrite, saved.before_gelu);
  drop(ctx, dh, rows);
  hidden.backward(ctx, dh, x, rows, dx);
}

}  // namespace nn
