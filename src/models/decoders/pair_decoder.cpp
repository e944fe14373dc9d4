// SPDX-License-Identifier: Apache-2.0
#include "models/decoders/pair_decoder.hpp"

#include <algorithm>

#include "kernels/attention.hpp"
#include "kernels/decode_attention.hpp"
#include "models/block_scope.hpp"

namespace models {
namespace {

using Layer = CaptionDecoder::Layer;

// The rows of images that one layer computes together. More would leave the cache between ops.
constexpr int64_t kRowsAtOnce = 4096;

// Returns how many images a layer computes together. Where rows are alike, products pad rows to
// units, and threads share the units. Of the group sizes that fit, the one with the fewest units
// per thread for the whole batch is chosen. Among equals, the largest is chosen.
int64_t images_at_once(const nn::Context& ctx, int64_t rows) {
  const int64_t most = std::clamp<int64_t>(kRowsAtOnce / rows, 1, ctx.batch);
  if (!ctx.queue.rows_alike()) return most;
  auto units = [&](int64_t images) {
    return base::ceil_div(base::ceil_div(images * rows, kernels::kAlikeUnit), ctx.queue.threads());
  };
  int64_t best = most, fewest = -1;
  for (int64_t count = most; count > 0; --count) {
    const int64_t all = ctx.batch / count * units(count) + units(ctx.batch % count);
    if (fewest >= 0 && all >= fewest) continue;
    fewest = all;
    best = count;
  }
  return best;
}

// Returns a context whose products see one chunk of one image each, unless rows are alike anyway.
nn::Context by_chunk(const nn::Context& ctx, int64_t chunks) {
  nn::Context c = ctx;
  c.batch = chunks;
  c.slices = ctx.queue.rows_alike() ? 1 : chunks;
  return c;
}

}  // namespace

void PairDecoder::project(nn::Context& ctx, View encoded, std::vector<Memory>& memory) const {
  const CaptionDecoder::Stack& stack = decoder_.stack();
  const int64_t rows = ctx.batch * decoder_.config().memory_length;
  nn::Context c = by_chunk(ctx, ctx.batch);
  memory.resize(stack.size());
  for (Memory& m : memory)
    m = {ctx.make_activation(true, rows * decoder_.config().width),
         ctx.make_activation(true, rows * decoder_.config().width)};
  for (size_t i = 0; i < stack.size(); ++i) {
    ForwardBlock weights(ctx, stack.block(i),
                         i + 1 < stack.size() ? stack.block(i + 1) : decoder_.first_block());
    device::Arena::Scope scope(ctx.arena);
    const nn::Attention& cross = stack.layer(i).cross;
    const View a = ctx.operand(encoded);
    for (int64_t j = 0; j < c.slices; ++j)
      c.run_by_rows({cross.key.product(c, a, rows, j, memory[i].k),
                     cross.value.product(c, a, rows, j, memory[i].v)});
  }
}

void PairDecoder::embed(nn::Context& ctx, const TextChunks& chunks, Tile tile, View x) const {
  const CaptionDecoder& d = decoder_;
  const int64_t width = d.config().width, rows = tile.count * chunks.rows();
  device::Arena::Scope scope(ctx.arena);
  std::vector<int32_t> id, position;
  for (int64_t c = tile.first; c < tile.first + tile.count; ++c)
    for (const TextChunks::Row& row : chunks[c].rows) {
      id.push_back(row.id);
      position.push_back(row.position);
    }
  const View ids = ctx.table(false, id), at = ctx.table(false, position);
  const View fixed = d.position_parameter() < 0 ? ctx.table(false, d.fixed_positions()) : View{};
  const View positions = ctx.arena.temporary(rows * width);
  ForwardBlock weights(ctx, d.first_block(), d.stack().first_block());
  auto gather = [&](View to, View table, View index) {
    ctx.run(kernels::GatherRows{.y = to,
                                .x = table,
                                .index = index,
                                .rows = rows,
                                .width = width,
                                .source_rows = table.count / width});
  };
  gather(x, ctx.weight(d.token_table()), ids);
  gather(positions, fixed.none() ? ctx.weight(d.position_parameter()) : fixed, at);
  ctx.run(kernels::Add{.y = x, .a = x, .b = positions});
}

void PairDecoder::attend_to_text(nn::Context& ctx, const Layer& layer, const Texts& texts,
                                 int64_t copies, View x, View y) const {
  device::Arena::Scope scope(ctx.arena);
  nn::Context c = by_chunk(ctx, copies * texts.chunks);
  const int64_t rows = copies * texts.rows, width = decoder_.config().width;
  auto make = [&] { return c.make_activation(false, rows * width); };
  const nn::Attention& self = layer.self;
  const View n = make();
  layer.norm1.forward(c, x, rows, n, layer.norm1.make_saved(c, false, rows));
  const nn::Attention::Saved s{make(), make(), make(), make(), {}};
  for (int64_t j = 0; j < c.slices; ++j)
    c.run_by_rows({self.query.product(c, n, rows, j, s.q), self.key.product(c, n, rows, j, s.k),
                   self.value.product(c, n, rows, j, s.v)});
  c.run(kernels::DecodeAttention{.o = s.o,
                                 .q = s.q,
                                 .k = s.k,
                                 .v = s.v,
                                 .index = texts.prefixes.slice(0, rows * texts.depth),
                                 .rows = rows,
                                 .heads = self.heads,
                                 .head_dim = width / self.heads,
                                 .keys = texts.depth,
                                 .cache_rows = rows});
  self.forward_output(c, s, rows, y, x);
}

void PairDecoder::make_query(nn::Context& ctx, const Layer& layer, const Texts& texts,
                             int64_t copies, View y, View query) const {
  device::Arena::Scope scope(ctx.arena);
  nn::Context c = by_chunk(ctx, copies * texts.chunks);
  const int64_t rows = copies * texts.rows;
  const View n = c.make_activation(false, rows * decoder_.config().width);
  layer.norm2.forward(c, y, rows, n, layer.norm2.make_saved(c, false, rows));
  layer.cross.query.forward(c, n, rows, query);
}

void PairDecoder::attend_to_images(nn::Context& ctx, const Layer& layer, const Texts& texts,
                                   Group group, const Memory& memory, View y, View query,
                                   View x) const {
  device::Arena::Scope scope(ctx.arena);
  nn::Context c = by_chunk(ctx, group.count * texts.chunks);
  const int64_t rows = group.count * texts.rows, width = decoder_.config().width,
                keys = decoder_.config().memory_length;
  auto of_group = [&](View v) {
    return v.slice(group.first * keys * width, group.count * keys * width);
  };
  nn::Attention::Saved s;
  s.o = c.make_activation(false, rows * width);
  c.run(kernels::AttentionForward{.o = s.o,
                                  .q = query,
                                  .k = of_group(memory.k),
                                  .v = of_group(memory.v),
                                  .shape = {.batch = group.count,
                                            .heads = layer.cross.heads,
                                            .query_length = texts.rows,
                                            .key_length = keys,
                                            .head_dim = width / layer.cross.heads}});
  const View z = ctx.arena.temporary(rows * width);
  layer.cross.forward_output(c, s, rows, z, y);
  const View n = c.make_activation(false, rows * width);
  layer.norm3.forward(c, z, rows, n, layer.norm3.make_saved(c, false, rows));
  layer.mlp.forward(c, n, rows, layer.mlp.make_unsaved(c, rows), x, z);
}

// Computes the first layer. Its queries for the images are the same for all images.
void PairDecoder::first_layer(nn::Context& ctx, const Texts& texts, const Memory& memory,
                              View x) const {
  const Layer& layer = decoder_.stack().layer(0);
  const int64_t width = decoder_.config().width, most = texts.images;
  attend_to_text(ctx, layer, texts, 1, texts.embedded, texts.seen);
  make_query(ctx, layer, texts, 1, texts.seen, texts.query);
  for (int64_t first = 0; first < ctx.batch; first += most) {
    device::Arena::Scope scope(ctx.arena);
    const Group group{first, std::min(most, ctx.batch - first)};
    const int64_t rows = group.count * texts.rows;
    const View y = ctx.arena.temporary(rows * width), q = ctx.make_activation(false, rows * width);
    for (const auto& [to, from] : {std::pair{y, texts.seen}, {q, texts.query}})
      ctx.run(kernels::GatherRows{.y = to,
                                  .x = from,
                                  .index = texts.repeat.slice(0, rows),
                                  .rows = rows,
                                  .width = width,
                                  .source_rows = texts.rows});
    attend_to_images(ctx, layer, texts, group, memory, y, q,
                     x.slice(first * texts.rows * width, rows * width));
  }
}

PairDecoder::Texts PairDecoder::make_texts(nn::Context& ctx, const TextChunks& chunks,
                                           Tile tile) const {
  const int64_t width = decoder_.config().width, rows = tile.count * chunks.rows(),
                depth = chunks.depth(), most = images_at_once(ctx, rows);
  std::vector<int32_t> prefixes(size_t(most * rows * depth), -1), repeat;
  for (int64_t i = 0; i < most * rows; ++i) {
    repeat.push_back(int32_t(i % rows));
    const int64_t r = i % rows % chunks.rows();
    const auto& of_chunk = chunks[tile.first + i % rows / chunks.rows()].rows;
    int32_t at = int32_t(r);
    for (int64_t j = of_chunk[size_t(r)].position; j >= 0; --j, at = of_chunk[size_t(at)].parent)
      prefixes[size_t(i * depth + j)] = int32_t(i - r + at);
  }
  return {.rows = rows,
          .chunks = tile.count,
          .depth = depth,
          .images = most,
          .prefixes = ctx.table(false, prefixes),
          .repeat = ctx.table(false, repeat),
          .embedded = ctx.arena.temporary(rows * width),
          .seen = ctx.arena.temporary(rows * width),
          .query = ctx.make_activation(false, rows * width)};
}

void PairDecoder::run(nn::Context& ctx, const TextChunks& chunks, Tile tile,
                      const std::vector<Memory>& memory, int next_block, View x) const {
  device::Arena::Scope scope(ctx.arena);
  const CaptionDecoder::Stack& stack = decoder_.stack();
  const Texts texts = make_texts(ctx, chunks, tile);
  const int64_t width = decoder_.config().width, rows = texts.rows, most = texts.images;
  embed(ctx, chunks, tile, texts.embedded);
  for (size_t i = 0; i < stack.size(); ++i) {
    ForwardBlock weights(ctx, stack.block(i),
                         i + 1 < stack.size() ? stack.block(i + 1) : next_block);
    if (i == 0) {
      first_layer(ctx, texts, memory[0], x);
      continue;
    }
    for (int64_t first = 0; first < ctx.batch; first += most) {
      device::Arena::Scope in_group(ctx.arena);
      const Group group{first, std::min(most, ctx.batch - first)};
      const int64_t count = group.count * rows * width;
      const View of_group = x.slice(first * rows * width, count), y = ctx.arena.temporary(count),
                 q = ctx.make_activation(false, count);
      attend_to_text(ctx, stack.layer(i), texts, group.count, of_group, y);
      make_query(ctx, stack.layer(i), texts, group.count, y, q);
      attend_to_images(ctx, stack.layer(i), texts, group, memory[i], y, q, of_group);
    }
  }
}

}  // namespace models
