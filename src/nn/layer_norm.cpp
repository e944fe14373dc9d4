// SPDX-License-Identifier: Apache-2.0
#include "kernels/layer_norm.hpp"

#include "nn/layers.hpp"

namespace nn {

void LayerNorm::forward(Context& ctx, View x, Rows rows, View y, const Saved& saved) const {
  ctx.run(kernels::LayerNormForward{.y = y,
                                    .mean = saved.mean,
                                    .rstd = saved.rstd,
                                    .x = x,
                                    .scale = ctx.weight(scale),
                                    .bias = bias < 0 ? View{} : ctx.weight(bias),
                                    .rows = rows.count,
                                    .columns = width});
}

void LayerNorm::backward(Context& ctx, View dy, View x, Rows rows, const Saved& saved,
                         const StreamGradient& dx, Write dx_write) const {
  sum_over_slices(ctx, {scale, bias}, [&](int64_t j, const auto& t) {
    auto part = [&](View v, int64_t columns) { return rows.slice(ctx, j, v, columns); };
    const View sums = dx.sums.none() ? View{} : dx.sums.slice(j * width, width);
    auto run = [&](const StreamGradient& into, View dscale, View dbias, Write write) {
      ctx.run(kernels::LayerNormBackward{.dx = part(into.d, width),
                                         .dscale = dscale,
                                         .dbias = dbias,
                                         .dy = part(dy, width),
                                         .x = part(x, width),
                                         .mean = part(saved.mean, 1),
                                         .rstd = part(saved.rstd, 1),
                                         .scale = ctx.weight(scale),
                                         .rows = rows.size(ctx, j),
                                         .columns = width,
                                         .dx_write = dx_write,
                                         .param_write = write,
                                         .rounded = part(into.rounded, width),
                                         .sums = into.sums.none() ? View{} : sums});
    };
    const auto& [scale_target, bias_target] = t;
    if (scale_target.view.none() || bias_target.view.none() ||
        scale_target.write == bias_target.write)
      return run(dx, scale_target.view, bias_target.view,
                 scale_target.view.none() ? bias_target.write : scale_target.write);
    // One gradient overwrites (its unit is sharded), the other accumulates: they need two ops.
    run(dx, scale_target.view, {}, scale_target.write);
    run(View{}, {}, bias_target.view, bias_target.write);
  });
}

}  // namespace nn
