// SPDX-License-Identifier: Apache-2.0
#include "models/vit_trunk.hpp"

#include "kernels/token_mean.hpp"
#include "models/embed_pass.hpp"

namespace models {
namespace {

VitConfig encoder_config(const VitTrunkOptions& options, int64_t height, int64_t width) {
  VitConfig config = vit_config(options.size, height, width, options.learned_positions);
  config.class_token = options.pool == Pool::tok;
  return config;
}

PoolingConfig pooling_config(const VitTrunkOptions& options, const VitConfig& encoder) {
  return {.pool = options.pool,
          .tokens = encoder.tokens(),
          .width = encoder.width,
          .mlp = options.size.mlp,
          .heads = options.size.heads};
}

}  // namespace

int64_t VitTrunk::patches_of(const ImageGroup& group) const {
  const VitConfig& config = encoder_.config();
  return group.height / config.patch_height * (group.width / config.patch_width);
}

void VitTrunkOptions::bind(config::Table& t) {
  auto never = config::OnResume::never;
  size.bind(t);
  t.choice("posemb", learned_positions, {{"learn", true}, {"sincos2d", false}},
           "position table of the patches")
      .on_resume(never);
  t.choice("pool", pool, kPoolNames,
           "how tokens become one vector: gap: their mean; tok: a class token in front of them; "
           "map: attention of a learned probe, then an MLP")
      .on_resume(never);
  if (!learned_positions && size.width % 4)
    t.error("posemb",
            fmt::format("sincos2d needs a width divisible by 4; width is {}", size.width));
}

std::string VitTrunkOptions::image_problem(int64_t height, int64_t width) const {
  for (int64_t side : {height, width})
    if (size.patch > 0 && side % size.patch)
      return fmt::format("{} is not divisible by model.trunk.patch = {}", side, size.patch);
  return "";
}

std::unique_ptr<Trunk> VitTrunkOptions::make(int64_t height, int64_t width, Recompute recompute,
                                             ParameterList& list) const {
  return std::make_unique<VitTrunk>(*this, height, width, recompute, list);
}

VitTrunk::VitTrunk(const VitTrunkOptions& options, int64_t height, int64_t width,
                   Recompute recompute, ParameterList& list)
    : encoder_(encoder_config(options, height, width), recompute, list),
      pooling_(pooling_config(options, encoder_.config()), recompute, list) {}

std::vector<Tap> VitTrunk::taps(int64_t, int64_t) const { return vit_taps(encoder_.config()); }

std::vector<std::string> VitTrunk::patch_tables() const {
  if (!encoder_.config().learned_positions) return {};
  return {"encoder/pos_embedding"};
}

std::string VitTrunk::changing_arguments() const {
  return encoder_.drops() ? "dropout draws other numbers in each pass" : "";
}

// Returns the context of the encoder, to which every view is an example.
nn::Context VitTrunk::of_images(const nn::Context& ctx, std::span<const ImageGroup> groups) const {
  nn::Context of = ctx;
  int64_t views = 0;
  for (const ImageGroup& g : groups) views += g.per_example;
  of.batch *= views;
  of.first_example *= views;
  return of;
}

int64_t VitTrunk::forward_flops(std::span<const ImageGroup> groups) const {
  int64_t flops = 0;
  for (const ImageGroup& g : groups)
    flops += g.per_example * (encoder_.forward_flops(patches_of(g)) + pooling_.forward_flops());
  return flops;
}
int64_t VitTrunk::input_flops(std::span<const ImageGroup> groups) const {
  int64_t flops = 0;
  for (const ImageGroup& g : groups) flops += g.per_example * encoder_.input_flops(patches_of(g));
  return flops;
}

void VitTrunk::place(nn::Context& ctx, std::span<const ImageGroup> groups, Pass& pass) const {
  auto& p = dynamic_cast<VitPass&>(pass);
  nn::Context images = of_images(ctx, groups);
  if (groups.size() == 1) {
    encoder_.place(images, p.encoder);
    return pooling_.place(images, p.pooling);
  }
  if (!encoder_.config().class_token || encoder_.drops())
    base::fail(base::Exit::config,
               "views of {} sizes need model.trunk.pool = \"tok\" and no dropout in a ViT; or give "
               "all views one size, or use model.trunk.kind = \"resnet\"",
               groups.size());
  std::vector<VitViews> views;
  for (const ImageGroup& g : groups)
    views.push_back({.per_example = g.per_example, .height = g.height, .width = g.width});
  encoder_.place_views(images, views, p.encoder);
  pooling_.place(p.encoder.token_rows.classes, p.pooling);
}

// Passes a tap's values to the reader, if it wants them: a mean over tokens if `tap` is one.
void VitTrunk::read(nn::Context& ctx, const VitPass& pass, const std::string& tap,
                    View values) const {
  if (!pass.wants(tap)) return;
  const VitConfig& config = encoder_.config();
  device::Arena::Scope scope(ctx.arena);
  if (tap.ends_with("_mean")) {
    const View mean = ctx.arena.temporary(ctx.batch * config.width);
    ctx.run(kernels::TokenMeanForward{.y = mean,
                                      .x = values,
                                      .batch = ctx.batch,
                                      .rows = config.tokens(),
                                      .width = config.width});
    values = mean;
  }
  pass.read_tap({.tap = tap,
                 .group = 0,
                 .images = ctx.batch,
                 .grid_height = 1,
                 .grid_width = values.count / (ctx.batch * config.width),
                 .channels = config.width,
                 .values = values});
}

View VitTrunk::forward(nn::Context& ctx, std::span<const ImageGroup> groups, int next_block,
                       Pass& pass) const {
  auto& p = dynamic_cast<VitPass&>(pass);
  nn::Context images = of_images(ctx, groups);
  for (size_t g = 0; g < p.encoder.sizes.size(); ++g)
    p.encoder.sizes[g].views.images = groups[g].images;
  CHECK(!p.read_tap || groups.size() == 1, "taps of images of several sizes");
  if (p.read_tap)
    p.encoder.after_block = [&](int64_t block, View tokens) {
      read(images, p, block_tap(block), tokens);
      read(images, p, mean_tap(block), tokens);
    };
  const View tokens =
      encoder_.forward(images, groups.front().images,
                       pooling_.has_block() ? pooling_.block() : next_block, p.encoder);
  p.encoder.after_block = {};
  read(images, p, "encoded", tokens);
  const View pooled = pooling_.forward(images, tokens, next_block, p.pooling);
  read(images, p, feature_tap(), pooled);
  if (pooled.type == device::DType::f32) return pooled;
  const View features = ctx.arena.save(pooled.count);
  ctx.run(kernels::Cast{.y = features, .x = pooled});
  return features;
}

void VitTrunk::backward(nn::Context& ctx, View d, Pass& pass) const {
  auto& p = dynamic_cast<VitPass&>(pass);
  // The features are one row for each image.
  nn::Context images = ctx;
  images.batch = d.count / width();
  images.first_example *= images.batch / ctx.batch;
  device::Arena::Scope scope(ctx.arena);
  const int64_t rows =
      p.encoder.sizes.empty() ? images.batch * encoder_.config().tokens() : p.encoder.rows;
  const View d_tokens = ctx.arena.temporary(rows * width());
  pooling_.backward(images, d, d_tokens, encoder_.last_block(), p.pooling);
  encoder_.backward(images, d_tokens, p.encoder);
}

}  // namespace models
