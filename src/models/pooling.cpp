// SPDX-License-Identifier: Apache-2.0
#include "models/pooling.hpp"

#include "kernels/token_mean.hpp"

namespace models {

Pooling::Pooling(const PoolingConfig& config, Recompute recompute, ParameterList& list)
    : config_(config), blocks_(recompute) {
  if (!has_block()) return;
  const std::string path = "encoder/MAPHead_0";
  const int64_t width = config.width;
  const int block = list.begin_block(path);
  Layer layer;
  layer.probe = list.add(path + "/probe", {1, 1, width}, ParameterList::xavier(1, width));
  layer.attention = list.attention(path + "/MultiHeadDotProductAttention_0", width, width,
                                   config.heads, true, ParameterList::xavier);
  layer.norm = list.layer_norm(path + "/LayerNorm_0", width, true);
  layer.mlp = list.mlp(path + "/MlpBlock_0", width, config.mlp, true);
  blocks_.add(block, layer);
}

void Pooling::place(nn::Context& ctx, Pass& pass) const {
  if (config_.pool == Pool::gap) return;
  std::vector<int32_t> index(static_cast<size_t>(ctx.batch), 0);
  if (config_.pool == Pool::tok)
    for (int64_t b = 0; b < ctx.batch; ++b) index[size_t(b)] = int32_t(b * config_.tokens);
  pass.index = ctx.table(true, index);
}

View Pooling::forward(nn::Context& ctx, View tokens, int next_block, Pass& pass) const {
  const int64_t width = config_.width, count = ctx.batch * width;
  if (has_block()) {
    Outputs outputs(ctx, count);
    return blocks_.forward(
        ctx, outputs, tokens, next_block, pass.blocks, [&](const Layer&) { return count; },
        [&](const Layer& layer, Stack::Kept& kept, View y, bool save) {
          forward_map(ctx, layer, kept, y, pass.index, save);
        });
  }
  pass.start = ctx.arena.low();
  if (config_.pool == Pool::gap) {
    View y = ctx.arena.save(count);
    ctx.run(kernels::TokenMeanForward{
        .y = y, .x = tokens, .batch = ctx.batch, .rows = config_.tokens, .width = width});
    return y;
  }
  View y = ctx.arena.save(count, tokens.type);
  ctx.run(kernels::GatherRows{.y = y,
                              .x = tokens,
                              .index = pass.index,
                              .rows = ctx.batch,
                              .width = width,
                              .source_rows = tokens.count / width});
  return y;
}

// y: none if only the tensors for backward are computed again.
void Pooling::forward_map(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View y,
                          View index, bool save) const {
  const int64_t width = config_.width, rows = ctx.batch;
  Layer::Saved& s = kept.saved;
  s.probes = ctx.make(save, rows * width);
  ctx.run(kernels::GatherRows{.y = s.probes,
                              .x = ctx.weight(layer.probe),
                              .index = index,
                              .rows = rows,
                              .width = width,
                              .source_rows = 1});
  s.attention = layer.attention.make_saved(ctx, save, false, queries(ctx), keys(ctx));
  layer.attention.forward_heads(ctx, s.probes, queries(ctx), kept.x, keys(ctx), kernels::Mask::full,
                                {}, s.attention);
  s.a = ctx.make(save, rows * width);
  layer.attention.forward_output(ctx, s.attention, rows, s.a, {});
  s.n = ctx.make_activation(save, rows * width);
  s.norm = layer.norm.make_saved(ctx, save, rows);
  layer.norm.forward(ctx, s.a, rows, s.n, s.norm);
  s.mlp = blocks_.make_saved(ctx, layer.mlp, save, rows);
  if (y.none()) return layer.mlp.forward_hidden(ctx, s.n, rows, s.mlp);
  layer.mlp.forward(ctx, s.n, rows, s.mlp, y, s.a);
}

void Pooling::backward_map(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View d,
                           View d_tokens) const {
  const int64_t width = config_.width, rows = ctx.batch, examples = rows / ctx.slices;
  Layer::Saved& s = kept.saved;
  blocks_.make_again(ctx, layer.mlp, s.n, rows, s.mlp);
  View dn = ctx.arena.temporary(rows * width);
  layer.mlp.backward(ctx, d, s.n, rows, s.mlp, dn);
  layer.norm.backward(ctx, dn, s.a, rows, s.norm, d, Write::accumulate);
  View d_probes = ctx.arena.temporary(rows * width);
  layer.attention.backward(ctx, d, s.probes, queries(ctx), kept.x, keys(ctx), kernels::Mask::full,
                           {}, s.attention, d_probes, d_tokens, Write::overwrite);
  if (ctx.gradient(layer.probe).view.none()) return;
  nn::sum_over_slices(ctx, {layer.probe}, [&](int64_t j, const auto& t) {
    ctx.run(kernels::ColumnSum{.out = t[0].view,
                               .x = d_probes.slice(j * examples * width, examples * width),
                               .m = examples,
                               .n = width,
                               .write = t[0].write});
  });
}

void Pooling::backward(nn::Context& ctx, View d, View d_tokens, int before, Pass& pass) const {
  const int64_t width = config_.width;
  if (has_block())
    return blocks_.backward(
        ctx, before, pass.blocks,
        [&](const Layer& layer, Stack::Kept& kept) {
          forward_map(ctx, layer, kept, {}, pass.index, false);
        },
        [&](const Layer& layer, Stack::Kept& kept) {
          backward_map(ctx, layer, kept, d, d_tokens);
        });
  ctx.arena.pop_low(pass.start);
  if (config_.pool == Pool::gap) {
    ctx.run(kernels::TokenMeanBackward{
        .dx = d_tokens, .dy = d, .batch = ctx.batch, .rows = config_.tokens, .width = width});
    return;
  }
  ctx.run(kernels::Fill{.y = d_tokens, .value = 0});
  ctx.run(kernels::ScatterRows{.y = d_tokens,
                               .x = d,
                               .index = pass.index,
                               .rows = ctx.batch,
                               .width = width,
                               .target_rows = d_tokens.count / width});
}

int64_t Pooling::forward_flops() const {
  const int64_t e = config_.width, t = config_.tokens;
  // Query and output are products of one row, key and value products of all tokens.
  return has_block() ? 2 * 2 * e * e + 2 * 2 * t * e * e + 2 * 2 * t * e + 2 * 2 * e * config_.mlp
                     : 0;
}

}  // namespace models
