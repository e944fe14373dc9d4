// SPDX-License-Identifier: Apache-2.0
// The backward pass of a ResNet. All sizes of images go through a layer together, op by op: the
// gradients of weights are sums over slices, and within a slice over all sizes.

#include "kernels/average_pool.hpp"
#include "kernels/max_pool.hpp"
#include "models/resnet.hpp"

namespace models {

using nn::ImageSize;
using Passed = nn::ImageNorm::Passed;
using Convolved = nn::Convolution::Passed;

// The gradient of a layer's output, by group: the sum of two parts. They lie in two buffers, which
// layers with equal sizes use in turn.
struct ResnetTrunk::Gradients {
  struct OfGroup {
    View d, add;  // add may be none
    std::array<View, 2> buffers;
    bool second = false;  // d lies in buffers[1]

    View& own() { return buffers[second]; }
    View& other() { return buffers[!second]; }
  };
  std::vector<OfGroup> groups;

  // Makes buffers for `count` elements, if those that are there are too small.
  static void fit(nn::Context& ctx, OfGroup& of, int64_t count) {
    if (of.buffers[0].count >= count) return;
    for (View& v : of.buffers) v = ctx.make_activation(false, count);
  }
};

// d: gradient of the features.
void ResnetTrunk::backward_pool(nn::Context& ctx, View d, const ResnetPass& pass,
                                Gradients& gradients) const {
  const size_t last = layers_.back().units.size() - 1;
  gradients.groups.resize(pass.groups.size());
  for (size_t g = 0; g < pass.groups.size(); ++g) {
    const LayerKept& kept = pass.layers.back().groups[g];
    Gradients::OfGroup& of = gradients.groups[g];
    Gradients::fit(ctx, of, kept.y.count);
    of.d = of.own().slice(0, kept.y.count);
    device::Arena::Scope scope(ctx.arena);
    const ImageSize& size = kept.units[last].size;
    const int64_t images = ctx.batch * size.per_example;
    View dy = d;
    if (pass.groups.size() > 1) {
      dy = ctx.arena.temporary(images * width());
      ctx.run(kernels::GatherRows{.y = dy,
                                  .x = d,
                                  .index = pass.rows_of_group[g],
                                  .rows = images,
                                  .width = width(),
                                  .source_rows = d.count / width()});
    }
    ctx.run(kernels::AveragePoolBackward{.dx = of.d,
                                         .dy = dy,
                                         .window = {.batch = images,
                                                    .height = size.height,
                                                    .width = size.width,
                                                    .kernel_height = size.height,
                                                    .kernel_width = size.width},
                                         .channels = width()});
  }
}

// Computes the outputs of layers [begin, end) of a stage again.
void ResnetTrunk::sum_again(nn::Context& ctx, size_t begin, size_t end, ResnetPass& pass) const {
  for (size_t i = begin; i < end; ++i) {
    const Layer& layer = layers_[i];
    for (size_t g = 0; g < pass.groups.size(); ++g) {
      LayerKept& kept = pass.layers[i].groups[g];
      const UnitKept& last = kept.units[layer.units.size() - 1];
      kept.y = ctx.make_activation(false, kept.y.count);
      kernels::BatchNormForward op =
          layer.units.back().norm.normalise(ctx, last.c, last.size, kept.sum_values, kept.y);
      op.shortcut = layer.shortcut ? kept.shortcut.c : kept.x;
      op.shortcut_norm = kept.shortcut_values;
      op.relu = true;
      ctx.run(op);
      pass.layers[i + 1].groups[g].x = kept.y;
    }
  }
}

// Repeats the convolutions of a layer, whose outputs were not kept.
void ResnetTrunk::run_again(nn::Context& ctx, const Layer& layer,
                            std::vector<LayerKept>& all) const {
  for (LayerKept& kept : all) {
    for (size_t u = 0; u < layer.units.size(); ++u) {
      UnitKept& unit = kept.units[u];
      unit.c = ctx.make_activation(false, unit.c.count);
      device::Arena::Scope scope(ctx.arena);
      const View x = u == 0 ? kept.x : activated(ctx, layer.units[u - 1], kept.units[u - 1], false);
      layer.units[u].convolution.forward(ctx, x, u == 0 ? kept.size : kept.units[u - 1].size,
                                         unit.c);
    }
    if (!layer.shortcut) continue;
    kept.shortcut.c = ctx.make_activation(false, kept.shortcut.c.count);
    layer.shortcut->convolution.forward(ctx, kept.x, kept.size, kept.shortcut.c);
  }
}

// Takes the gradient of the sum, in gradients.d, through a shortcut with a convolution. The
// gradient of the layer's input goes to the other buffer, or to a larger one.
void ResnetTrunk::backward_shortcut(nn::Context& ctx, const Layer& layer,
                                    const std::vector<LayerKept>& kept,
                                    Gradients& gradients) const {
  std::vector<Passed> norms;
  std::vector<Convolved> convolutions;
  for (size_t g = 0; g < kept.size(); ++g) {
    const View d = gradients.groups[g].d;
    const UnitKept& unit = kept[g].shortcut;
    norms.push_back({.x = unit.c, .saved = unit.statistics, .size = unit.size, .dy = d, .dx = d});
    convolutions.push_back({.x = kept[g].x, .dy = d, .size = kept[g].size});
  }
  layer.shortcut->norm.backward(ctx, norms, false);
  layer.shortcut->convolution.backward_weights(ctx, convolutions);
  for (size_t g = 0; g < kept.size(); ++g) {
    Gradients::OfGroup& of = gradients.groups[g];
    of.add = of.other().slice(0, kept[g].x.count);
    layer.shortcut->convolution.backward_data(ctx, of.d, kept[g].size, of.add);
  }
}

void ResnetTrunk::backward_layer(nn::Context& ctx, size_t number, ResnetPass& pass,
                                 Gradients& gradients) const {
  device::Arena::Scope scope(ctx.arena);
  const Layer& layer = layers_[number];
  std::vector<LayerKept>& all = pass.layers[number].groups;
  const size_t count = all.size();
  if (recompute_ == Recompute::block) run_again(ctx, layer, all);
  std::vector<View> dc(count);
  std::vector<Passed> norms;
  for (size_t g = 0; g < count; ++g) {
    const Gradients::OfGroup& of = gradients.groups[g];
    const UnitKept& unit = all[g].units[layer.units.size() - 1];
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
  layer.units.back().norm.backward(ctx, norms, true);
  for (size_t g = 0; g < count; ++g) gradients.groups[g].add = gradients.groups[g].d;
  if (layer.shortcut) backward_shortcut(ctx, layer, all, gradients);

  for (size_t u = layer.units.size(); u-- > 0;) {
    const Unit& unit = layer.units[u];
    std::vector<View> dx(count);
    for (size_t g = 0; g < count && u > 0; ++g)
      dx[g] = ctx.make_activation(false, all[g].units[u - 1].c.count);
    {
      device::Arena::Scope inputs(ctx.arena);
      std::vector<Convolved> convolutions;
      for (size_t g = 0; g < count; ++g)
        convolutions.push_back(
            {.x = u ? activated(ctx, layer.units[u - 1], all[g].units[u - 1], false) : all[g].x,
             .dy = dc[g],
             .size = u ? all[g].units[u - 1].size : all[g].size});
      unit.convolution.backward_weights(ctx, convolutions);
    }
    if (u == 0) break;
    norms.clear();
    for (size_t g = 0; g < count; ++g) {
      const UnitKept& before = all[g].units[u - 1];
      unit.convolution.backward_data(ctx, dc[g], before.size, dx[g]);
      norms.push_back({.x = before.c,
                       .saved = before.statistics,
                       .size = before.size,
                       .dy = dx[g],
                       .dx = dx[g]});
    }
    layer.units[u - 1].norm.backward(ctx, norms, true);
    dc = dx;
  }
  for (size_t g = 0; g < count; ++g) {
    Gradients::OfGroup& of = gradients.groups[g];
    // The stem takes the gradient in one part.
    if (number == 0) {
      layer.units[0].convolution.backward_data(ctx, dc[g], all[g].size, of.add, Write::accumulate);
      of.d = of.add;
      continue;
    }
    // Without a convolution in the shortcut `add` is the old d, so the other buffer is free.
    if (!layer.shortcut) of.second = !of.second;
    of.d = of.own().slice(0, all[g].x.count);
    layer.units[0].convolution.backward_data(ctx, dc[g], all[g].size, of.d);
  }
}

void ResnetTrunk::backward_stem(nn::Context& ctx, ResnetPass& pass,
                                const Gradients& gradients) const {
  device::Arena::Scope scope(ctx.arena);
  std::vector<StemKept>& all = pass.stem.groups;
  std::vector<View> x, d;
  std::vector<Passed> norms;
  std::vector<Convolved> convolutions;
  for (size_t g = 0; g < all.size(); ++g) {
    StemKept& kept = all[g];
    x.push_back(pixels(ctx, pass.groups[g].images));
    if (recompute_ == Recompute::block) {
      kept.unit.c = ctx.make_activation(false, kept.unit.c.count);
      stem_.convolution.forward(ctx, x[g], kept.size, kept.unit.c);
    }
    d.push_back(ctx.make_activation(false, kept.unit.c.count));
    ctx.run(kernels::MaxPoolBackward{
        .dx = d[g],
        .dy = gradients.groups[g].d,
        .place = kept.place,
        .window = stem_window(ctx.batch * kept.size.per_example, kept.unit.size),
        .channels = config_.width});
    norms.push_back({.x = kept.unit.c,
                     .saved = kept.unit.statistics,
                     .size = kept.unit.size,
                     .dy = d[g],
                     .dx = d[g]});
    convolutions.push_back({.x = x[g], .dy = d[g], .size = kept.size});
  }
  stem_.norm.backward(ctx, norms, true);
  stem_.convolution.backward_weights(ctx, convolutions);
  for (size_t g = 0; g < pass.image_gradients.size(); ++g)
    stem_.convolution.backward_data(ctx, d[g], all[g].size, pass.image_gradients[g]);
}

void ResnetTrunk::backward(nn::Context& ctx, View d, Pass& pass) const {
  auto& p = dynamic_cast<ResnetPass&>(pass);
  device::Arena::Scope scope(ctx.arena);
  Gradients gradients;
  backward_pool(ctx, d, p, gradients);
  for (size_t end = layers_.size(); end > 0;) {
    size_t begin = end - 1;
    while (begin > 0 && layers_[begin - 1].stage == layers_[end - 1].stage) --begin;
    for (size_t g = 0; g < p.groups.size(); ++g)
      for (size_t i = begin; i < end; ++i)
        Gradients::fit(ctx, gradients.groups[g], p.layers[i].groups[g].x.count);
    device::Arena::Scope stage(ctx.arena);
    if (!keeps_output(layers_[begin])) sum_again(ctx, begin, end - 1, p);
    for (; end > begin; --end) {
      const size_t i = end - 1;
      backward_block(ctx, layers_[i].block, i ? layers_[i - 1].block : stem_block_,
                     [&] { backward_layer(ctx, i, p, gradients); });
      ctx.arena.pop_low(p.layers[i].mark);
    }
  }
  backward_block(ctx, stem_block_, -1, [&] { backward_stem(ctx, p, gradients); });
  ctx.arena.pop_low(p.start);
}

}  // namespace models
