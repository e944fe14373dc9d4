// SPDX-License-Identifier: Apache-2.0
// The backward pass of a ResNet.

#include "kernels/max_pool.hpp"
#include "models/trunks/convolutional/resnet.hpp"

namespace models {

using nn::ImageSize;
using Passed = nn::ImageNorm::Passed;
using Convolved = nn::Convolution::Passed;

void ResnetUnit::again(nn::Context& ctx, View x, const ImageSize& size, Kept& kept) const {
  kept.c = ctx.make_activation(false, kept.c.count);
  convolution.forward(ctx, x, size, kept.c);
}

void ResnetBlock::output_again(nn::Context& ctx, Kept& kept) const {
  const Saved& s = kept.saved;
  const ResnetUnit::Kept& last = s.units[units.size() - 1];
  kernels::BatchNormForward op =
      units.back().norm.normalise(ctx, last.c, last.size, s.sum_values, kept.y);
  op.shortcut = shortcut ? s.shortcut.c : kept.x;
  op.shortcut_norm = s.shortcut_values;
  op.relu = true;
  ctx.run(op);
}

void ResnetBlock::again(nn::Context& ctx, Kept& kept) const {
  Saved& s = kept.saved;
  for (size_t u = 0; u < units.size(); ++u) {
    s.units[u].c = ctx.make_activation(false, s.units[u].c.count);
    device::Arena::Scope scope(ctx.arena);
    const View x = u == 0 ? kept.x : units[u - 1].activated(ctx, s.units[u - 1], false);
    units[u].convolution.forward(ctx, x, u == 0 ? kept.size : s.units[u - 1].size, s.units[u].c);
  }
  if (shortcut) shortcut->again(ctx, kept.x, kept.size, s.shortcut);
}

// Propagates the gradient of the output through the ReLU and the last norm. The result dc is the
// gradient of the last convolution's output. The gradient of the shortcut's result becomes of.d and
// of.add.
void ResnetBlock::backward_sum(nn::Context& ctx, const std::vector<Kept>& all,
                               std::vector<MapGradient>& gradients, std::vector<View>& dc) const {
  std::vector<Passed> norms;
  for (size_t g = 0; g < all.size(); ++g) {
    const MapGradient& of = gradients[g];
    const ResnetUnit::Kept& unit = all[g].saved.units[units.size() - 1];
    dc[g] = ctx.make_activation(false, unit.c.count);
    norms.push_back({.x = unit.c,
                     .saved = unit.statistics,
                     .size = unit.size,
                     .dy = of.d,
                     .dx = dc[g],
                     .add = of.add,
                     .y = all[g].y,
                     .g = of.d});
  }
  units.back().norm.backward(ctx, norms, true);
  for (MapGradient& of : gradients) of.add = of.d;
}

// Propagates the gradient of the sum, in gradients.d, through a shortcut with a convolution. The
// gradient of the layer's input goes to the other buffer, or to a larger one.
void ResnetBlock::backward_shortcut(nn::Context& ctx, const std::vector<Kept>& all,
                                    std::vector<MapGradient>& gradients) const {
  std::vector<Passed> norms;
  std::vector<Convolved> convolutions;
  for (size_t g = 0; g < all.size(); ++g) {
    const View d = gradients[g].d;
    const ResnetUnit::Kept& unit = all[g].saved.shortcut;
    norms.push_back({.x = unit.c, .saved = unit.statistics, .size = unit.size, .dy = d, .dx = d});
    convolutions.push_back({.x = all[g].x, .dy = d, .size = all[g].size});
  }
  shortcut->norm.backward(ctx, norms, false);
  shortcut->convolution.backward_weights(ctx, convolutions);
  for (size_t g = 0; g < all.size(); ++g) {
    MapGradient& of = gradients[g];
    of.add = of.other().slice(0, all[g].x.count);
    shortcut->convolution.backward_data(ctx, of.d, all[g].size, of.add);
  }
}

// Propagates dc, the gradient of the first convolution's output, to the layer's input.
void ResnetBlock::backward_input(nn::Context& ctx, const View& dc, const Kept& kept,
                                 MapGradient& of) const {
  const nn::Convolution& convolution = units[0].convolution;
  if (follows_stem) {
    convolution.backward_data(ctx, dc, kept.size, of.add, Write::accumulate);
    of.d = of.add;
    return;
  }
  // Without a convolution in the shortcut `add` is the old d, so the other buffer is free.
  if (!shortcut) of.second = !of.second;
  of.d = of.own().slice(0, kept.x.count);
  convolution.backward_data(ctx, dc, kept.size, of.d);
}

void ResnetBlock::backward(nn::Context& ctx, std::vector<Kept>& all,
                           std::vector<MapGradient>& gradients) const {
  const size_t count = all.size();
  std::vector<View> dc(count);
  backward_sum(ctx, all, gradients, dc);
  if (shortcut) backward_shortcut(ctx, all, gradients);
  for (size_t u = units.size(); u-- > 0;) {
    const ResnetUnit& unit = units[u];
    std::vector<View> dx(count);
    for (size_t g = 0; g < count && u > 0; ++g)
      dx[g] = ctx.make_activation(false, all[g].saved.units[u - 1].c.count);
    {
      device::Arena::Scope inputs(ctx.arena);
      std::vector<Convolved> convolutions;
      for (size_t g = 0; g < count; ++g) {
        const Saved& s = all[g].saved;
        convolutions.push_back(
            {.x = u ? units[u - 1].activated(ctx, s.units[u - 1], false) : all[g].x,
             .dy = dc[g],
             .size = u ? s.units[u - 1].size : all[g].size});
      }
      unit.convolution.backward_weights(ctx, convolutions);
    }
    if (u == 0) break;
    std::vector<Passed> norms;
    for (size_t g = 0; g < count; ++g) {
      const ResnetUnit::Kept& before = all[g].saved.units[u - 1];
      unit.convolution.backward_data(ctx, dc[g], before.size, dx[g]);
      norms.push_back({.x = before.c,
                       .saved = before.statistics,
                       .size = before.size,
                       .dy = dx[g],
                       .dx = dx[g]});
    }
    units[u - 1].norm.backward(ctx, norms, true);
    dc = dx;
  }
  for (size_t g = 0; g < count; ++g) backward_input(ctx, dc[g], all[g], gradients[g]);
}

void ResnetStem::backward(nn::Context& ctx, std::vector<Kept>& all,
                          std::vector<MapGradient>& gradients) const {
  std::vector<View> d;
  std::vector<Passed> norms;
  std::vector<Convolved> convolutions;
  for (size_t g = 0; g < all.size(); ++g) {
    const Kept& kept = all[g];
    const ResnetUnit::Kept& c = kept.saved.unit;
    d.push_back(ctx.make_activation(false, c.c.count));
    ctx.run(kernels::MaxPoolBackward{.dx = d[g],
                                     .dy = gradients[g].d,
                                     .place = kept.saved.place,
                                     .window = window(ctx.batch * kept.size.per_example, c.size),
                                     .channels = channels()});
    norms.push_back({.x = c.c, .saved = c.statistics, .size = c.size, .dy = d[g], .dx = d[g]});
    convolutions.push_back({.x = kept.x, .dy = d[g], .size = kept.size});
  }
  unit.norm.backward(ctx, norms, true);
  unit.convolution.backward_weights(ctx, convolutions);
  for (size_t g = 0; g < all.size(); ++g)
    if (!gradients[g].image.none())
      unit.convolution.backward_data(ctx, d[g], all[g].size, gradients[g].image);
}

}  // namespace models
