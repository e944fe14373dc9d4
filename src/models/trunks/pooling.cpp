// SPDX-License-Identifier: Apache-2.0
#include "models/trunks/pooling.hpp"

#include "kernels/average_pool.hpp"
#include "kernels/token_mean.hpp"

namespace models {
namespace {

// Returns a window over the whole grid of each image.
kernels::Window whole_grid(int64_t images, const TokenGrid& grid) {
  return {.batch = images,
          .height = grid.height,
          .width = grid.width,
          .kernel_height = grid.height,
          .kernel_width = grid.width};
}

}  // namespace

Pooling::Pooling(const PoolingConfig& config, int64_t width, Recompute recompute,
                 ParameterList& list)
    : config_(config), width_(width), blocks_(recompute) {
  if (has_norm()) {
    norm_block_ = list.begin_block(config.norm);
    norm_ = list.torch_layer_norm(config.norm, width);
  }
  if (!has_map()) return;
  const std::string& path = config.path;
  const int block = list.begin_block(path);
  Layer layer;
  layer.probe = list.add(path + "/probe", {1, 1, width}, ParameterList::xavier(1, width));
  layer.attention = list.attention(path + "/MultiHeadDotProductAttention_0", width, width,
                                   config.heads, true, ParameterList::xavier);
  layer.norm = list.layer_norm(path + "/LayerNorm_0", width, true);
  layer.norm.epsilon = config.norm_epsilon;
  layer.mlp = list.mlp(path + "/MlpBlock_0", width, config.mlp, true);
  layer.mlp.gelu = config.gelu;
  blocks_.add(block, layer);
}

void Pooling::place(nn::Context& ctx, const Tokens& tokens, Pass& pass) const {
  const bool several = tokens.groups.size() > 1;
  pass.views = tokens.views();
  pass.tokens = tokens.groups.front().grid.count();
  pass.index = tokens.class_rows;
  pass.of_group.clear();
  switch (config_.pool) {
    case Pool::grid:
      if (several) place_groups(ctx, tokens, pass);
      return;
    case Pool::tok:
      CHECK(!pass.index.none(), "a trunk without class tokens");
      return;
    case Pool::map:
      pass.index = ctx.table(true, std::vector<int32_t>(size_t(ctx.batch * pass.views), 0));
      return;
    case Pool::gap:
      return;
  }
}

// Places the tables that reorder the means from groups to examples.
void Pooling::place_groups(nn::Context& ctx, const Tokens& tokens, Pass& pass) const {
  std::vector<int32_t> rows(size_t(ctx.batch * pass.views));
  for (int64_t view = 0, at = 0; const Tokens::Group& g : tokens.groups) {
    std::vector<int32_t> own;
    for (int64_t b = 0; b < ctx.batch; ++b)
      for (int64_t v = 0; v < g.per_example; ++v) {
        own.push_back(int32_t(b * pass.views + view + v));
        rows[size_t(own.back())] = int32_t(at++);
      }
    view += g.per_example;
    pass.of_group.push_back(ctx.table(true, own));
  }
  pass.index = ctx.table(true, rows);
}

View Pooling::forward(nn::Context& ctx, const Tokens& tokens, int next_block, Pass& pass) const {
  nn::Context images = of_images(ctx, pass.views);
  const int64_t count = images.batch * width_;
  const bool packed = !tokens.packed.none();
  if (has_map()) {
    Outputs outputs(images, count);
    return blocks_.forward(
        images, outputs, tokens.of_one_size(), next_block, pass.blocks,
        [&](const Layer&) { return count; },
        [&](const Layer& layer, Stack::Kept& kept, View y, bool save) {
          forward_map(images, layer, kept, y, pass, save);
        });
  }
  pass.start = ctx.arena.low();
  if (config_.pool == Pool::grid) {
    const View means = forward_grids(ctx, tokens, pass);
    return has_norm() ? forward_norm(images, means, next_block, pass) : means;
  }
  if (config_.pool == Pool::tok)
    return class_tokens(images, packed ? tokens.packed : tokens.of_one_size(), pass);
  const View y = ctx.arena.save(count);
  ctx.run(kernels::TokenMeanForward{.y = y,
                                    .x = tokens.of_one_size(),
                                    .batch = images.batch,
                                    .rows = pass.tokens,
                                    .width = width_});
  return y;
}

// ctx counts every image as an example.
View Pooling::forward_norm(nn::Context& ctx, View means, int next_block, Pass& pass) const {
  ForwardBlock weights(ctx, norm_block_, next_block);
  const View y = ctx.arena.save(means.count);
  pass.means = means;
  pass.norm = norm_.make_saved(ctx, true, ctx.batch);
  norm_.forward(ctx, means, ctx.batch, y, pass.norm);
  return y;
}

// Returns the class token of each image, in f32.
View Pooling::class_tokens(nn::Context& ctx, View tokens, const Pass& pass) const {
  const View y = ctx.arena.save(ctx.batch * width_, tokens.type);
  ctx.run(kernels::GatherRows{.y = y,
                              .x = tokens,
                              .index = pass.index,
                              .rows = ctx.batch,
                              .width = width_,
                              .source_rows = tokens.count / width_});
  if (y.type == device::DType::f32) return y;
  const View features = ctx.arena.save(y.count);
  ctx.run(kernels::Cast{.y = features, .x = y});
  return features;
}

View Pooling::forward_grids(nn::Context& ctx, const Tokens& tokens, const Pass& pass) const {
  const int64_t rows = ctx.batch * pass.views;
  const View features = ctx.arena.save(rows * width_);
  device::Arena::Scope scope(ctx.arena);
  const bool one = tokens.groups.size() == 1;
  const View means = one ? features : ctx.arena.temporary(rows * width_);
  int64_t at = 0;
  for (const Tokens::Group& g : tokens.groups) {
    const int64_t images = ctx.batch * g.per_example;
    ctx.run(kernels::AveragePoolForward{.y = means.slice(at, images * width_),
                                        .x = g.values,
                                        .window = whole_grid(images, g.grid),
                                        .channels = width_});
    at += images * width_;
  }
  if (!one)
    ctx.run(kernels::GatherRows{.y = features,
                                .x = means,
                                .index = pass.index,
                                .rows = rows,
                                .width = width_,
                                .source_rows = rows});
  return features;
}

void Pooling::backward_grids(nn::Context& ctx, View d, const Tokens& d_tokens,
                             const Pass& pass) const {
  for (size_t i = 0; i < d_tokens.groups.size(); ++i) {
    device::Arena::Scope scope(ctx.arena);
    const Tokens::Group& g = d_tokens.groups[i];
    const int64_t images = ctx.batch * g.per_example;
    View dy = d;
    if (d_tokens.groups.size() > 1) {
      dy = ctx.arena.temporary(images * width_);
      ctx.run(kernels::GatherRows{.y = dy,
                                  .x = d,
                                  .index = pass.of_group[i],
                                  .rows = images,
                                  .width = width_,
                                  .source_rows = d.count / width_});
    }
    ctx.run(kernels::AveragePoolBackward{
        .dx = g.values, .dy = dy, .window = whole_grid(images, g.grid), .channels = width_});
  }
}

// y: none if only the tensors for backward are computed again.
void Pooling::forward_map(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View y,
                          const Pass& pass, bool save) const {
  const int64_t rows = ctx.batch;
  Layer::Saved& s = kept.saved;
  s.probes = ctx.make(save, rows * width_);
  ctx.run(kernels::GatherRows{.y = s.probes,
                              .x = ctx.weight(layer.probe),
                              .index = pass.index,
                              .rows = rows,
                              .width = width_,
                              .source_rows = 1});
  s.attention = layer.attention.make_saved(ctx, save, false, queries(ctx), keys(ctx, pass));
  layer.attention.forward_heads(ctx, s.probes, queries(ctx), kept.x, keys(ctx, pass),
                                kernels::Mask::full, {}, s.attention);
  s.a = ctx.make(save, rows * width_);
  layer.attention.forward_output(ctx, s.attention, rows, s.a, {});
  s.n = ctx.make_activation(save, rows * width_);
  s.norm = layer.norm.make_saved(ctx, save, rows);
  layer.norm.forward(ctx, s.a, rows, s.n, s.norm);
  s.mlp = blocks_.make_saved(ctx, layer.mlp, save, rows);
  if (y.none()) return layer.mlp.forward_hidden(ctx, s.n, rows, s.mlp);
  layer.mlp.forward(ctx, s.n, rows, s.mlp, y, s.a);
}

void Pooling::backward_map(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View d,
                           View d_tokens, const Pass& pass) const {
  const int64_t rows = ctx.batch, examples = rows / ctx.slices;
  Layer::Saved& s = kept.saved;
  blocks_.make_again(ctx, layer.mlp, s.n, rows, s.mlp);
  View dn = ctx.arena.temporary(rows * width_);
  layer.mlp.backward(ctx, d, s.n, rows, s.mlp, dn);
  layer.norm.backward(ctx, dn, s.a, rows, s.norm, d, Write::accumulate);
  View d_probes = ctx.arena.temporary(rows * width_);
  layer.attention.backward(ctx, d, s.probes, queries(ctx), kept.x, keys(ctx, pass),
                           kernels::Mask::full, {}, s.attention, d_probes, d_tokens,
                           Write::overwrite);
  if (ctx.gradient(layer.probe).view.none()) return;
  nn::sum_over_slices(ctx, {layer.probe}, [&](int64_t j, const auto& t) {
    ctx.run(kernels::ColumnSum{.out = t[0].view,
                               .x = d_probes.slice(j * examples * width_, examples * width_),
                               .m = examples,
                               .n = width_,
                               .write = t[0].write});
  });
}

void Pooling::backward(nn::Context& ctx, View d, const Tokens& d_tokens, int before,
                       Pass& pass) const {
  nn::Context images = of_images(ctx, pass.views);
  if (has_map())
    return blocks_.backward(
        images, before, pass.blocks,
        [&](const Layer& layer, Stack::Kept& kept) {
          forward_map(images, layer, kept, {}, pass, false);
        },
        [&](const Layer& layer, Stack::Kept& kept) {
          backward_map(images, layer, kept, d, d_tokens.of_one_size(), pass);
        });
  if (has_norm()) {
    device::Arena::Scope scope(ctx.arena);
    const View dx = ctx.arena.temporary(d.count);
    backward_block(ctx, norm_block_, before, [&] {
      norm_.backward(images, d, pass.means, images.batch, pass.norm, dx, Write::overwrite);
    });
    ctx.arena.pop_low(pass.start);
    return backward_grids(ctx, dx, d_tokens, pass);
  }
  ctx.arena.pop_low(pass.start);
  if (config_.pool == Pool::grid) return backward_grids(ctx, d, d_tokens, pass);
  const View dx = d_tokens.packed.none() ? d_tokens.of_one_size() : d_tokens.packed;
  if (config_.pool == Pool::gap) {
    ctx.run(kernels::TokenMeanBackward{
        .dx = dx, .dy = d, .batch = images.batch, .rows = pass.tokens, .width = width_});
    return;
  }
  ctx.run(kernels::Fill{.y = dx, .value = 0});
  ctx.run(kernels::ScatterRows{.y = dx,
                               .x = d,
                               .index = pass.index,
                               .rows = images.batch,
                               .width = width_,
                               .target_rows = dx.count / width_});
}

int64_t Pooling::forward_flops(int64_t tokens) const {
  const int64_t e = width_, t = tokens;
  // Query and output are products of one row, key and value products of all tokens.
  return has_map() ? 2 * 2 * e * e + 2 * 2 * t * e * e + 2 * 2 * t * e + 2 * 2 * e * config_.mlp
                   : 0;
}

}  // namespace models
