// SPDX-License-Identifier: Apache-2.0
#include "models/pairs/text_tower.hpp"

#include <cmath>

#include "kernels/embedding.hpp"

namespace models {
namespace {

constexpr std::pair<const char*, TextPool> kTextPoolNames[] = {{"last", TextPool::last},
                                                               {"first", TextPool::first},
                                                               {"mean", TextPool::mean},
                                                               {"map", TextPool::map}};

Pool pool_of(TextPool pool) {
  if (pool == TextPool::map) return Pool::map;
  return pool == TextPool::mean ? Pool::gap : Pool::tok;
}

}  // namespace

void TextOptions::bind(config::Table& t) {
  const auto never = config::OnResume::never;
  t.key("depth", depth, "transformer blocks").min(1).max(1000).on_resume(never);
  t.key("width", width, "embedding width").min(1).max(65536).on_resume(never);
  t.key("mlp", mlp, "hidden width of the MLPs").min(1).max(1 << 20).on_resume(never);
  t.key("heads", heads, "attention heads; must divide width").min(1).max(1024).on_resume(never);
  t.choice("pool", pool, kTextPoolNames,
           "how tokens become one vector: last, first: that token, and with eos = \"sticky\" the "
           "last one is always the end; mean: the mean of all; map: attention of a learned probe, "
           "then an MLP")
      .on_resume(never);
  if (heads > 0 && width % heads)
    t.error(t.has("width") && !t.has("heads") ? "width" : "heads",
            fmt::format("width = {} is not divisible by heads = {}", width, heads));
}

TextTower::TextTower(const TextOptions& options, int64_t vocabulary, int64_t length,
                     Recompute recompute, ParameterList& list)
    : options_(options),
      vocabulary_(vocabulary),
      length_(length),
      layers_({.depth = options.depth,
               .width = options.width,
               .mlp = options.mlp,
               .heads = options.heads,
               .path = "txt/Encoder_0"},
              recompute),
      pooling_(declare(recompute, list)) {}

Pooling TextTower::declare(Recompute recompute, ParameterList& list) {
  const int64_t width = options_.width;
  const shard::Init init = ParameterList::normal(1 / std::sqrt(double(width)));
  embed_block_ = list.begin_block("txt/embed");
  table_ = list.add("txt/Embed_0/embedding", {vocabulary_, width}, init);
  positions_ = list.add("txt/pos_embedding", {1, length_, width}, init);
  layers_.declare(list);
  return {{.pool = pool_of(options_.pool),
           .mlp = options_.mlp,
           .heads = options_.heads,
           .path = "txt/MAPHead_0"},
          width,
          recompute,
          list};
}

void TextTower::place(nn::Context& ctx, Pass& pass) const {
  pass.tokens.groups.assign(1, {.per_example = 1, .grid = {.height = 1, .width = length_}});
  pass.tokens.class_rows = {};
  if (pool_of(options_.pool) == Pool::tok) {
    std::vector<int32_t> rows;
    for (int64_t b = 0; b < ctx.batch; ++b)
      rows.push_back(base::narrow<int32_t>(options_.pool == TextPool::last ? (b + 1) * length_ - 1
                                                                           : b * length_));
    pass.tokens.class_rows = ctx.table(true, rows);
  }
  pooling_.place(ctx, pass.tokens, pass.pooling);
}

View TextTower::forward(nn::Context& ctx, View ids, int next_block, Pass& pass) const {
  const nn::Sequences all = sequences(ctx);
  const int64_t width = options_.width, rows = all.rows.count;
  pass.ids = ids;
  pass.start = ctx.arena.low();
  Outputs outputs(ctx, rows * width);
  const View x = outputs.make(rows * width);
  {
    ForwardBlock weights(ctx, embed_block_, layers_.first_block());
    ctx.run(kernels::EmbeddingForward{.y = x,
                                      .ids = ids,
                                      .table = ctx.weight(table_),
                                      .positions = ctx.weight(positions_),
                                      .rows = rows,
                                      .width = width,
                                      .vocabulary = vocabulary_,
                                      .length = length_});
  }
  const int pooling = pooling_.has_block() ? pooling_.block() : next_block;
  pass.tokens.groups.front().values =
      layers_.forward(ctx, outputs, x, all, pooling, pass.layers, [](int, const View&) {});
  return pooling_.forward(ctx, pass.tokens, next_block, pass.pooling);
}

void TextTower::backward(nn::Context& ctx, View d, int before, Pass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  const int64_t width = options_.width, rows = ctx.batch * length_ / ctx.slices,
                examples = ctx.batch / ctx.slices, columns = length_ * width;
  pass.gradient = pass.tokens;
  View& d_tokens = pass.gradient.groups.front().values;
  d_tokens = ctx.arena.temporary(d_tokens.count);
  pooling_.backward(ctx, d, pass.gradient, layers_.last_block(), pass.pooling);
  const nn::StreamGradient stream = layers_.stream(ctx, d_tokens);
  layers_.backward(ctx, stream, sequences(ctx), embed_block_, pass.layers);
  backward_block(ctx, embed_block_, before, [&] {
    const View dx = stream.d;
    if (!ctx.gradient(table_).view.none())
      nn::sum_over_slices(ctx, {table_}, [&](int64_t j, const auto& t) {
        ctx.run(kernels::EmbeddingBackward{.dtable = t[0].view,
                                           .dy = dx.slice(j * rows * width, rows * width),
                                           .ids = pass.ids.slice(j * rows, rows),
                                           .rows = rows,
                                           .width = width,
                                           .vocabulary = vocabulary_,
                                           .write = t[0].write});
      });
    if (!ctx.gradient(positions_).view.none())
      nn::sum_over_slices(ctx, {positions_}, [&](int64_t j, const auto& t) {
        ctx.run(kernels::ColumnSum{.out = t[0].view,
                                   .x = dx.slice(j * examples * columns, examples * columns),
                                   .m = examples,
                                   .n = columns,
                                   .write = t[0].write});
      });
  });
  ctx.arena.pop_low(pass.start);
}

}  // namespace models
