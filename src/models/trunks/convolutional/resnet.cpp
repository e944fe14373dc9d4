// SPDX-License-Identifier: Apache-2.0
#include "models/trunks/convolutional/resnet.hpp"

#include <cmath>

#include "kernels/max_pool.hpp"

namespace models {

using device::DType;
using nn::ImageSize;

namespace {

constexpr int64_t kImageChannels = 3;

}  // namespace

// ---------------------------------------------------------------- construction

ResnetUnit ResnetTrunk::add_unit(ParameterList& list, const std::string& convolution,
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

// path: "layer1.0."
ResnetBlock ResnetTrunk::make_block(ParameterList& list, const std::string& path, int stage,
                                    int64_t stride, int64_t in) const {
  const int64_t planes = config_.width << stage;
  const int64_t inner = config_.bottleneck ? planes * config_.width_per_group / 64 * config_.groups
                                           : planes,
                out = config_.bottleneck ? 4 * planes : planes;
  ResnetBlock block;
  auto add = [&](const nn::Convolution& shape, bool last) {
    const std::string n = std::to_string(block.units.size() + 1);
    block.units.push_back(
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
    block.shortcut = add_unit(list, path + "downsample.0", path + "downsample.1",
                              {.in = in, .out = out, .stride = stride}, false);
  return block;
}

// ssl.md 1.2 lists the taps.
ResnetTrunk::ResnetTrunk(const ResnetConfig& config, Recompute recompute, ParameterList& list)
    : ConvTrunk(recompute), config_(config) {
  list.begin_levels();
  const int stem_block = list.begin_block("trunk/stem");
  set_stem(
      stem_block,
      {add_unit(list, "conv1", "bn1",
                {.in = kImageChannels, .out = config.width, .kernel = 7, .stride = 2, .padding = 3},
                false)},
      {"res1", "the stem after max-pooling"});
  int64_t channels = config.width;
  for (int stage = 0; stage < 4; ++stage) {
    for (int64_t i = 0; i < config.blocks[size_t(stage)]; ++i) {
      const std::string path = fmt::format("layer{}.{}", stage + 1, i);
      const int64_t stride = i > 0 || stage == 0 ? 1 : stage == 3 ? config.layer4_stride : 2;
      const int number = list.begin_block("trunk/" + path);
      ResnetBlock block = make_block(list, path + ".", stage, stride, channels);
      block.follows_stem = stage == 0 && i == 0;
      channels = block.channels();
      add(number, stage, std::move(block));
    }
    end_stage({fmt::format("res{}", stage + 2), fmt::format("the output of layer{}", stage + 1)});
  }
  list.end_levels();
}

// ---------------------------------------------------------------- sizes

kernels::Window ResnetStem::window(int64_t images, const ImageSize& size) const {
  return {.batch = images,
          .height = size.height,
          .width = size.width,
          .kernel_height = 3,
          .kernel_width = 3,
          .stride = 2,
          .padding = 1};
}

ImageSize ResnetStem::output_size(const ImageSize& images) const {
  const kernels::Window pooled = window(1, unit.convolution.output_size(images));
  return {images.per_example, pooled.out_height(), pooled.out_width()};
}

ImageSize ResnetBlock::output_size(ImageSize size) const {
  for (const ResnetUnit& unit : units) size = unit.convolution.output_size(size);
  return size;
}

int64_t ResnetBlock::flops(ImageSize size) const {
  int64_t flops = shortcut ? shortcut->flops(size) : 0;
  for (const ResnetUnit& unit : units) {
    flops += unit.flops(size);
    size = unit.convolution.output_size(size);
  }
  return flops;
}

std::vector<Tap> ResnetTrunk::taps(int64_t height, int64_t width) const {
  std::vector<Tap> out = ConvTrunk::taps(height, width);
  const ImageSize size = stem().unit.convolution.output_size({1, height, width});
  out.insert(out.begin(),
             {"conv1", {size.height, size.width, config_.width}, "the stem after its ReLU"});
  const int64_t channels = this->width();
  const std::vector<std::string> pooled = pooled_taps();
  out.push_back({pooled[0], {1, 1, channels}, "the mean of res5 over all positions"});
  out.push_back({pooled[1], {channels}, "the same as a vector, which heads read"});
  return out;
}

// ---------------------------------------------------------------- forward

View ResnetUnit::run(nn::Context& ctx, View x, const ImageSize& size, bool save,
                     nn::BatchNormCall call, Kept& kept) const {
  kept.size = convolution.output_size(size);
  kept.c = ctx.make_activation(save, ctx.batch * kept.size.pixels() * convolution.out);
  convolution.forward(ctx, x, size, kept.c);
  norm.measure(ctx, kept.c, kept.size, kept.statistics, call);
  return kept.c;
}

View ResnetUnit::activated(nn::Context& ctx, const Kept& kept, bool in_place) const {
  const View y = in_place ? kept.c : ctx.make_activation(false, kept.c.count);
  kernels::BatchNormForward op = norm.normalise(ctx, kept.c, kept.size, kept.statistics, y);
  op.relu = true;
  ctx.run(op);
  return y;
}

void ResnetStem::make_saved(nn::Context& ctx, Kept& kept) const {
  kept.saved.unit.statistics = unit.norm.make_saved(ctx, true, kept.size);
  if (ctx.keep)
    kept.saved.place = ctx.arena.save(ctx.batch * kept.out.pixels() * channels(), DType::u8);
}

void ResnetStem::forward(nn::Context& ctx, Kept& kept, bool save, nn::BatchNormCall call,
                         const MapReader& read) const {
  ResnetUnit::Kept& c = kept.saved.unit;
  unit.run(ctx, kept.x, kept.size, save, call, c);
  const View a = unit.activated(ctx, c, !save);
  read("conv1", c.size, channels(), a);
  ctx.run(kernels::MaxPoolForward{.y = kept.y,
                                  .place = kept.saved.place,
                                  .x = a,
                                  .window = window(ctx.batch * kept.size.per_example, c.size),
                                  .channels = channels()});
}

void ResnetBlock::make_saved(nn::Context& ctx, Kept& kept) const {
  Saved& s = kept.saved;
  for (size_t u = 0; u < units.size(); ++u)
    s.units[u].statistics = units[u].norm.make_saved(ctx, true, kept.size);
  if (shortcut) s.shortcut.statistics = shortcut->norm.make_saved(ctx, true, kept.size);
}

void ResnetBlock::make_output_saved(nn::Context& ctx, Kept& kept) const {
  Saved& s = kept.saved;
  s.sum_values = units.back().norm.saved_values(ctx, s.units[units.size() - 1].statistics);
  if (shortcut) s.shortcut_values = shortcut->norm.saved_values(ctx, s.shortcut.statistics);
}

// Computes y. `save`: the outputs of convolutions outlive the block.
void ResnetBlock::forward(nn::Context& ctx, Kept& kept, bool save, nn::BatchNormCall call,
                          const MapReader&) const {
  device::Arena::Scope scope(ctx.arena);
  Saved& s = kept.saved;
  View x = kept.x;
  ImageSize size = kept.size;
  for (size_t u = 0; u < units.size(); ++u) {
    units[u].run(ctx, x, size, save, call, s.units[u]);
    size = s.units[u].size;
    if (u + 1 < units.size()) x = units[u].activated(ctx, s.units[u], !save);
  }
  const ResnetUnit::Kept& last = s.units[units.size() - 1];
  kernels::BatchNormForward op =
      units.back().norm.normalise(ctx, last.c, last.size, last.statistics, kept.y);
  op.shortcut = kept.x;
  op.relu = true;
  if (shortcut) {
    op.shortcut = shortcut->run(ctx, kept.x, kept.size, save, call, s.shortcut);
    op.shortcut_norm = shortcut->norm.values(ctx, s.shortcut.statistics);
  }
  ctx.run(op);
}

}  // namespace models
