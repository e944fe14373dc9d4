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
                                    .columns = width,
                                    .eps = epsilon});
}

void LayerNorm::backward(Context& ctx, std::span<const Passed> all, Write dx_write) const {
  sum_over_slices(ctx, {scale, bias}, [&](int64_t j, const auto& targets) {
    bool first = true;
    for (const Passed& p : all) {
      auto part = [&](View v, int64_t columns) { return p.rows.slice(ctx, j, v, columns); };
      const View sums = p.dx.sums.none() ? View{} : p.dx.sums.slice(j * width, width);
      auto run = [&](const StreamGradient& into, View dscale, View dbias, Write write) {
        ctx.run(kernels::LayerNormBackward{.dx = part(into.d, width),
                                           .dscale = dscale,
                                           .dbias = dbias,
                                           .dy = part(p.dy, width),
                                           .x = part(p.x, width),
                                           .mean = part(p.saved.mean, 1),
                                           .rstd = part(p.saved.rstd, 1),
                                           .scale = ctx.weight(scale),
                                           .rows = p.rows.size(ctx, j),
                                           .columns = width,
                                           .dx_write = dx_write,
                                           .param_write = write,
                                           .rounded = part(into.rounded, width),
                                           .sums = into.sums.none() ? View{} : sums});
      };
      auto [of_scale, of_bias] = targets;
      if (!first) of_scale.write = of_bias.write = Write::accumulate;
      first = false;
      if (of_scale.view.none() || of_bias.view.none() || of_scale.write == of_bias.write) {
        run(p.dx, of_scale.view, of_bias.view,
            of_scale.view.none() ? of_bias.write : of_scale.write);
        continue;
      }
      // One gradient overwrites (its unit is sharded), the other accumulates: they need two ops.
      run(p.dx, of_scale.view, {}, of_scale.write);
      run(View{}, {}, of_bias.view, of_bias.write);
    }
  });
}

}  // namespace nn
