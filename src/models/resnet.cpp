// SPDX-License-Identifier: Apache-2.0
#include "models/resnet.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/average_pool.hpp"
#include "kernels/max_pool.hpp"
#include "kernels/scale_pixels.hpp"

namespace models {

using device::DType;
using nn::ImageSize;

namespace {

constexpr int64_t kImageChannels = 3;

int64_t images_of(const nn::Context& ctx, const ImageSize& size) {
  return ctx.batch * size.per_example;
}

// The taps of ssl.md 1.2.
std::string stage_tap(const ResnetTrunk::Layer& layer) {
  return "res" + std::to_string(layer.stage + 2);
}

// A window over whole images.
kernels::Window all_pixels(int64_t images, const ImageSize& size) {
  return {.batch = images,
          .height = size.height,
          .width = size.width,
          .kernel_height = size.height,
          .kernel_width = size.width};
}

}  // namespace

// ---------------------------------------------------------------- construction

ResnetTrunk::Unit ResnetTrunk::add_unit(ParameterList& list, const std::string& convolution,
                                        const std::string& norm, nn::Convolution shape,
                                        bool zero_scale) const {
  const int64_t k = shape.kernel, fan_in = shape.in / shape.groups * k * k;
  shape.weight = list.add_operand(
      "trunk/" + convolution + ".weight", {shape.out, shape.in / shape.groups, k, k},
      config_.init == ResnetInit::uniform
          ? ParameterList::uniform_fan_in(fan_in)
          : ParameterList::normal(std::sqrt(2.0 / double(shape.out * k * k))));
  if (config_.norm == ResnetNorm::group) {
    nn::GroupNorm gn = list.group_norm("trunk/" + norm, shape.out, zero_scale);
    gn.groups = config_.norm_groups;
    gn.eps = config_.eps;
    return {shape, gn};
  }
  nn::BatchNorm bn = list.batch_norm("trunk/" + norm, shape.out, zero_scale);
  bn.group_examples = config_.group_examples;
  bn.eps = config_.eps;
  bn.momentum = config_.momentum;
  return {shape, bn};
}

ResnetTrunk::Layer ResnetTrunk::make_layer(ParameterList& list, int stage, int64_t number,
                                           int64_t in) const {
  const int64_t planes = config_.width << stage;
  const int64_t stride = number > 0 || stage == 0 ? 1 : stage == 3 ? config_.layer4_stride : 2;
  const int64_t inner = config_.bottleneck ? planes * config_.width_per_group / 64 * config_.groups
                                           : planes,
                out = config_.bottleneck ? 4 * planes : planes;
  const std::string path = fmt::format("layer{}.{}.", stage + 1, number);
  Layer layer{.block = list.begin_block("trunk/" + path.substr(0, path.size() - 1)),
              .units = {},
              .shortcut = {},
              .stage = stage};
  auto add = [&](const nn::Convolution& shape, bool last) {
    const std::string n = std::to_string(layer.units.size() + 1);
    layer.units.push_back(
        add_unit(list, path + "conv" + n, path + "bn" + n, shape, last && config_.zero_last_scale));
  };
  if (config_.bottleneck) {
    add({.in = in, .out = inner}, false);
    add({.in = inner,
         .out = inner,
         .kernel = 3,
         .stride = stride,
         .padding = 1,
         .groups = config_.groups},
        false);
    add({.in = inner, .out = out}, true);
  } else {
    add({.in = in, .out = out, .kernel = 3, .stride = stride, .padding = 1}, false);
    add({.in = out, .out = out, .kernel = 3, .padding = 1}, true);
  }
  if (stride != 1 || in != out)
    layer.shortcut = add_unit(list, path + "downsample.0", path + "downsample.1",
                              {.in = in, .out = out, .stride = stride}, false);
  return layer;
}

ResnetTrunk::ResnetTrunk(const ResnetConfig& config, Recompute recompute, ParameterList& list)
    : config_(config), recompute_(recompute) {
  stem_block_ = list.begin_block("trunk/stem");
  stem_ = add_unit(
      list, "conv1", "bn1",
      {.in = kImageChannels, .out = config.width, .kernel = 7, .stride = 2, .padding = 3}, false);
  int64_t channels = config.width;
  for (int stage = 0; stage < 4; ++stage)
    for (int64_t i = 0; i < config.blocks[size_t(stage)]; ++i) {
      layers_.push_back(make_layer(list, stage, i, channels));
      channels = layers_.back().units.back().convolution.out;
      layers_.back().ends_stage = i + 1 == config.blocks[size_t(stage)];
    }
}

// ---------------------------------------------------------------- sizes

kernels::Window ResnetTrunk::stem_window(int64_t images, const ImageSize& size) const {
  return {.batch = images,
          .height = size.height,
          .width = size.width,
          .kernel_height = 3,
          .kernel_width = 3,
          .stride = 2,
          .padding = 1};
}

ImageSize ResnetTrunk::pooled_size(const ImageSize& images) const {
  const kernels::Window window = stem_window(1, stem_.convolution.output_size(images));
  return {images.per_example, window.out_height(), window.out_width()};
}

ImageSize ResnetTrunk::output_size(const Layer& layer, ImageSize size) const {
  for (const Unit& unit : layer.units) size = unit.convolution.output_size(size);
  return size;
}

std::vector<Tap> ResnetTrunk::taps(int64_t height, int64_t width) const {
  ImageSize size = stem_.convolution.output_size({1, height, width});
  auto map = [&](int64_t channels) {
    return std::vector<int64_t>{size.height, size.width, channels};
  };
  std::vector<Tap> out = {{"conv1", map(config_.width), "the stem after its ReLU"}};
  size = pooled_size({1, height, width});
  out.push_back({"res1", map(config_.width), "the stem after max-pooling"});
  for (const Layer& layer : layers_) {
    size = output_size(layer, size);
    if (layer.ends_stage)
      out.push_back({stage_tap(layer), map(layer.units.back().convolution.out),
                     fmt::format("the output of layer{}", layer.stage + 1)});
  }
  const int64_t channels = this->width();
  out.push_back({"res5avg", {1, 1, channels}, "the mean of res5 over all positions"});
  out.push_back({"flatten", {channels}, "the same as a vector, which heads read"});
  return out;
}

template <class F>
int64_t ResnetTrunk::sum_of_flops(std::span<const ImageGroup> groups, const F& flops) const {
  int64_t sum = 0;
  for (const ImageGroup& g : groups) sum += flops(ImageSize{g.per_example, g.height, g.width});
  return sum;
}

int64_t ResnetTrunk::input_flops(std::span<const ImageGroup> groups) const {
  return sum_of_flops(
      groups, [&](const ImageSize& size) { return stem_.convolution.shape(1, size).flops(); });
}

int64_t ResnetTrunk::forward_flops(std::span<const ImageGroup> groups) const {
  return sum_of_flops(groups, [&](ImageSize size) {
    int64_t flops = stem_.convolution.shape(1, size).flops();
    size = pooled_size(size);
    for (const Layer& layer : layers_) {
      if (layer.shortcut) flops += layer.shortcut->convolution.shape(1, size).flops();
      for (const Unit& unit : layer.units) {
        flops += unit.convolution.shape(1, size).flops();
        size = unit.convolution.output_size(size);
      }
    }
    return flops;
  });
}

// ---------------------------------------------------------------- forward

void ResnetTrunk::place(nn::Context& ctx, std::span<const ImageGroup> groups, Pass& pass) const {
  auto& p = dynamic_cast<ResnetPass&>(pass);
  p.start = ctx.arena.low();
  p.rows = {};
  p.rows_of_group.clear();
  if (groups.size() == 1) return;
  int64_t views = 0, first = 0;
  for (const ImageGroup& g : groups) views += g.per_example;
  std::vector<int32_t> rows(size_t(ctx.batch * views));
  for (int64_t view = 0, at = 0; const ImageGroup& g : groups) {
    std::vector<int32_t> own;
    for (int64_t b = 0; b < ctx.batch; ++b)
      for (int64_t v = 0; v < g.per_example; ++v) {
        own.push_back(int32_t(b * views + view + v));
        rows[size_t(own.back())] = int32_t(at++);
      }
    first += int64_t(own.size());
    view += g.per_example;
    p.rows_of_group.push_back(ctx.table(true, own));
  }
  CHECK(first == ctx.batch * views);
  p.rows = ctx.table(true, rows);
}

// Returns images as the stem's convolution reads them.
View ResnetTrunk::pixels(nn::Context& ctx, View images) const {
  if (images.type == ctx.activation()) return images;
  const View y = ctx.make_activation(false, images.count);
  ctx.run(kernels::ScalePixels{.y = y, .x = images, .range = bytes_});
  return y;
}

// Runs the convolution and measures its output, which is saved if `save`. Returns it.
View ResnetTrunk::run_unit(nn::Context& ctx, const Unit& unit, View x, const ImageSize& size,
                           bool save, nn::BatchNormCall call, UnitKept& kept) const {
  kept.size = unit.convolution.output_size(size);
  kept.c = ctx.make_activation(save, ctx.batch * kept.size.pixels() * unit.convolution.out);
  unit.convolution.forward(ctx, x, size, kept.c);
  unit.norm.measure(ctx, kept.c, kept.size, kept.statistics, call);
  return kept.c;
}

// Returns the norm and the ReLU of a unit's output, in its place if `in_place`.
View ResnetTrunk::activated(nn::Context& ctx, const Unit& unit, const UnitKept& kept,
                            bool in_place) const {
  const View y = in_place ? kept.c : ctx.make_activation(false, kept.c.count);
  kernels::BatchNormForward op = unit.norm.normalise(ctx, kept.c, kept.size, kept.statistics, y);
  op.relu = true;
  ctx.run(op);
  return y;
}

void ResnetTrunk::read(const ResnetPass& pass, const std::string& tap, const ImageSize& size,
                       int64_t group, int64_t channels, View values) const {
  if (!pass.wants(tap)) return;
  pass.read_tap({.tap = tap,
                 .group = group,
                 .images = values.count / (size.height * size.width * channels),
                 .grid_height = size.height,
                 .grid_width = size.width,
                 .channels = channels,
                 .values = values});
}

void ResnetTrunk::forward_stem(nn::Context& ctx, ResnetPass& pass, bool save) const {
  ForwardBlock weights(ctx, stem_block_, layers_.front().block);
  const auto count = int64_t(pass.groups.size());
  const int64_t channels = config_.width;
  for (int64_t g = 0; g < count; ++g) {
    device::Arena::Scope scope(ctx.arena);
    const ImageGroup& in = pass.groups[size_t(g)];
    StemKept& kept = pass.stem.groups[size_t(g)];
    run_unit(ctx, stem_, pixels(ctx, in.images), kept.size, save, {g, count}, kept.unit);
    const View a = activated(ctx, stem_, kept.unit, !save);
    read(pass, "conv1", kept.unit.size, g, channels, a);
    const kernels::Window window = stem_window(images_of(ctx, kept.size), kept.unit.size);
    ctx.run(kernels::MaxPoolForward{
        .y = kept.y, .place = kept.place, .x = a, .window = window, .channels = channels});
    read(pass, "res1", kept.pooled, g, channels, kept.y);
  }
}

// Computes y. `save`: the outputs of convolutions outlive the block.
void ResnetTrunk::forward_layer(nn::Context& ctx, const Layer& layer, LayerKept& kept, bool save,
                                nn::BatchNormCall call) const {
  device::Arena::Scope scope(ctx.arena);
  View x = kept.x;
  ImageSize size = kept.size;
  for (size_t u = 0; u < layer.units.size(); ++u) {
    run_unit(ctx, layer.units[u], x, size, save, call, kept.units[u]);
    size = kept.units[u].size;
    if (u + 1 < layer.units.size()) x = activated(ctx, layer.units[u], kept.units[u], !save);
  }
  const UnitKept& last = kept.units[layer.units.size() - 1];
  kernels::BatchNormForward op =
      layer.units.back().norm.normalise(ctx, last.c, last.size, last.statistics, kept.y);
  op.shortcut = kept.x;
  op.relu = true;
  if (layer.shortcut) {
    op.shortcut = run_unit(ctx, *layer.shortcut, kept.x, kept.size, save, call, kept.shortcut);
    op.shortcut_norm = layer.shortcut->norm.values(ctx, kept.shortcut.statistics);
  }
  ctx.run(op);
}

// Averages the last layer's outputs. Returns f32 [examples, views, width].
View ResnetTrunk::pool(nn::Context& ctx, ResnetPass& pass) const {
  int64_t rows = 0;
  for (const ImageGroup& g : pass.groups) rows += ctx.batch * g.per_example;
  const View features = ctx.arena.save(rows * width());
  device::Arena::Scope scope(ctx.arena);
  const bool one = pass.groups.size() == 1;
  const View means = one ? features : ctx.arena.temporary(rows * width());
  int64_t at = 0;
  for (size_t g = 0; g < pass.groups.size(); ++g) {
    const LayerKept& last = pass.layers.back().groups[g];
    const ImageSize& size = last.units[layers_.back().units.size() - 1].size;
    const int64_t images = images_of(ctx, size);
    const View y = means.slice(at, images * width());
    at += y.count;
    ctx.run(kernels::AveragePoolForward{
        .y = y, .x = last.y, .window = all_pixels(images, size), .channels = width()});
    const ImageSize point{size.per_example, 1, 1};
    read(pass, "res5avg", point, int64_t(g), width(), y);
    read(pass, "flatten", point, int64_t(g), width(), y);
  }
  if (!one)
    ctx.run(kernels::GatherRows{.y = features,
                                .x = means,
                                .index = pass.rows,
                                .rows = rows,
                                .width = width(),
                                .source_rows = rows});
  return features;
}

// Allocates the outputs of layers that are not kept: two buffers in turn for each group, because a
// layer reads one and writes the other. They serve one stage if a backward pass follows, otherwise
// all stages.
ResnetTrunk::Spare ResnetTrunk::spare_outputs(nn::Context& ctx, std::span<const ImageGroup> groups,
                                              int stage) const {
  Spare spare(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    ImageSize size = pooled_size({groups[g].per_example, groups[g].height, groups[g].width});
    int64_t largest = ctx.keep ? 0 : size.pixels() * config_.width;
    for (const Layer& layer : layers_) {
      size = output_size(layer, size);
      if (!ctx.keep || (layer.stage == stage && !keeps_output(layer)))
        largest = std::max(largest, size.pixels() * layer.units.back().convolution.out);
    }
    for (View& v : spare[g]) v = ctx.make_activation(!ctx.keep, ctx.batch * largest);
  }
  return spare;
}

// Prepares what the stem keeps of each group.
void ResnetTrunk::make_stem(nn::Context& ctx, const Spare& spare, ResnetPass& pass) const {
  pass.stem.mark = ctx.arena.low();
  pass.stem.groups.assign(pass.groups.size(), {});
  for (size_t g = 0; g < pass.groups.size(); ++g) {
    StemKept& kept = pass.stem.groups[g];
    const ImageGroup& in = pass.groups[g];
    kept.size = {in.per_example, in.height, in.width};
    kept.pooled = pooled_size(kept.size);
    const int64_t elements = ctx.batch * kept.pooled.pixels() * config_.width;
    kept.unit.statistics = stem_.norm.make_saved(ctx, true, kept.size);
    if (ctx.keep) kept.place = ctx.arena.save(elements, DType::u8);
    kept.y = ctx.keep ? ctx.make_activation(true, elements) : spare[g][0].slice(0, elements);
  }
}

// Prepares what a layer keeps of each group.
void ResnetTrunk::make_layer_kept(nn::Context& ctx, size_t number, const Spare& spare,
                                  ResnetPass& pass) const {
  const Layer& layer = layers_[number];
  OfGroups<LayerKept>& made = pass.layers[number];
  made.mark = ctx.arena.low();
  made.groups.assign(pass.groups.size(), {});
  for (size_t g = 0; g < pass.groups.size(); ++g) {
    LayerKept& kept = made.groups[g];
    if (number == 0) {
      kept.x = pass.stem.groups[g].y;
      kept.size = pass.stem.groups[g].pooled;
    } else {
      const LayerKept& before = pass.layers[number - 1].groups[g];
      kept.x = before.y;
      kept.size = before.units[layers_[number - 1].units.size() - 1].size;
    }
    for (size_t u = 0; u < layer.units.size(); ++u)
      kept.units[u].statistics = layer.units[u].norm.make_saved(ctx, true, kept.size);
    if (layer.shortcut)
      kept.shortcut.statistics = layer.shortcut->norm.make_saved(ctx, true, kept.size);
    const int64_t elements =
        ctx.batch * output_size(layer, kept.size).pixels() * layer.units.back().convolution.out;
    if (ctx.keep && keeps_output(layer)) {
      kept.y = ctx.make_activation(true, elements);
      continue;
    }
    kept.y = spare[g][(number + 1) % 2].slice(0, elements);
    if (!ctx.keep) continue;
    kept.sum_values =
        layer.units.back().norm.saved_values(ctx, kept.units[layer.units.size() - 1].statistics);
    if (layer.shortcut)
      kept.shortcut_values = layer.shortcut->norm.saved_values(ctx, kept.shortcut.statistics);
  }
}

View ResnetTrunk::forward(nn::Context& ctx, std::span<const ImageGroup> groups, int next_block,
                          Pass& pass) const {
  auto& p = dynamic_cast<ResnetPass&>(pass);
  p.groups.assign(groups.begin(), groups.end());
  const bool save = ctx.keep && recompute_ != Recompute::block;
  const auto count = int64_t(groups.size());
  Spare spare = ctx.keep ? Spare() : spare_outputs(ctx, groups, 0);
  std::optional<device::Arena::Scope> stage;  // of the spare buffers
  make_stem(ctx, spare, p);
  forward_stem(ctx, p, save);
  p.layers.assign(layers_.size(), {});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const bool last = i + 1 == layers_.size();
    if (ctx.keep && (i == 0 || layers_[i - 1].ends_stage)) {
      stage.reset();
      stage.emplace(ctx.arena);
      spare = spare_outputs(ctx, groups, layer.stage);
    }
    ForwardBlock weights(ctx, layer.block, last ? next_block : layers_[i + 1].block);
    make_layer_kept(ctx, i, spare, p);
    for (int64_t g = 0; g < count; ++g) {
      LayerKept& kept = p.layers[i].groups[size_t(g)];
      forward_layer(ctx, layer, kept, save, {g, count});
      if (ctx.watch) ctx.watch->block_done(layer.block, kept.y);
      if (layer.ends_stage)
        read(p, stage_tap(layer), output_size(layer, kept.size), g,
             layer.units.back().convolution.out, kept.y);
    }
  }
  stage.reset();
  return pool(ctx, p);
}

}  // namespace models
