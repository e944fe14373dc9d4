// SPDX-License-Identifier: Apache-2.0
#include "kernels/layer_scale.hpp"

#include "nn/layers.hpp"

namespace nn {

void LayerScale::forward(Context& ctx, View x, Rows rows, View residual, View y) const {
  ctx.run(kernels::LayerScaleForward{.y = y,
                                     .residual = residual,
                                     .x = x,
                                     .scale = ctx.weight(scale),
                                     .images = rows.count,
                                     .rows = 1,
                                     .columns = width});
}

void LayerScale::backward(Context& ctx, View dy, View x, Rows rows, View dx) const {
  sum_over_slices(ctx, {scale}, [&](int64_t j, const auto& targets) {
    ctx.run(kernels::LayerScaleBackward{.dx = rows.slice(ctx, j, dx, width),
                                        .dscale = targets[0].view,
                                        .dy = rows.slice(ctx, j, dy, width),
                                        .x = rows.slice(ctx, j, x, width),
                                        .scale = ctx.weight(scale),
                                        .images = rows.size(ctx, j),
                                        .rows = 1,
                                        .columns = width,
                                        .write = targets[0].write});
  });
}

}  // namespace nn
