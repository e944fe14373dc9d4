// SPDX-License-Identifier: Apache-2.0
#include "models/decoders/caption_decoder.hpp"

#include <cmath>

#include "kernels/embedding.hpp"
#include "kernels/gemm.hpp"
#include "models/trunks/vit.hpp"

namespace models {

void CaptionDecoder::Selection::place(nn::Context& ctx) {
  index_.reserve(size_t(ctx.batch * rows.length));
  rows.place(ctx);
  last.place(ctx);
  rows.index_in_text(index_);
  text_index = ctx.table(true, index_);
  last.index_in(rows, index_);
  last_index = ctx.table(true, index_);
}

CaptionDecoder::CaptionDecoder(const DecoderConfig& config, Recompute recompute,
                               ParameterList& list)
    : config_(config), blocks_(recompute) {
  const int64_t width = config.width;
  embed_block_ = list.begin_block("decoder/embed");
  table_ = list.add("decoder/EmbedTargets/embedding", {config.embedding_rows, width},
                    ParameterList::normal(1));
  if (config.learned_positions)
    positions_ = list.add("pos_embedding_decoder", {1, config.position_rows, width},
                          ParameterList::normal(1 / std::sqrt(double(width))));
  else
    position_table_ = sincos2d(1, config.position_rows, width);
  auto lecun = [](int64_t fan_in, int64_t) { return ParameterList::lecun(fan_in); };
  for (int64_t i = 0; i < config.depth; ++i) {
    const std::string path = fmt::format("decoder/EncDecBlock{}", i);
    const int block = list.begin_block(path);
    Layer layer;
    layer.number = int(i);
    layer.norm1 = list.layer_norm(path + "/LayerNorm1", width, config.bias);
    layer.norm2 = list.layer_norm(path + "/LayerNorm2", width, config.bias);
    layer.norm3 = list.layer_norm(path + "/LayerNorm3", width, config.bias);
    layer.self = list.attention(path + "/SelfAttn", width, width, config.heads, false, lecun);
    layer.cross =
        list.attention(path + "/CrossAttn", width, config.memory_width, config.heads, false, lecun);
    layer.mlp = list.mlp(path + "/MLP", width, config.mlp, config.bias);
    layer.self.weight_dropout = layer.cross.weight_dropout = layer.mlp.dropout_rate =
        config.dropout;
    layer.self.layer = layer.cross.layer = layer.mlp.layer = int(i);
    layer.self.dropout_name = "decoder/self_weights";
    layer.cross.dropout_name = "decoder/cross_weights";
    layer.mlp.dropout_name = "decoder/mlp";
    blocks_.add(block, layer);
  }
}

void CaptionDecoder::place(nn::Context& ctx, Pass& pass) const {
  pass.positions = positions_ < 0 ? ctx.table(true, position_table_) : View{};
  pass.selection.place(ctx);
}

View CaptionDecoder::forward(nn::Context& ctx, View ids, const Memory& memory, int next_block,
                             Pass& pass) const {
  pass.memory = memory;
  pass.ids = ids;
  const int64_t width = config_.width, rows = pass.selection.rows.count(),
                text_rows = ctx.batch * config_.length;
  pass.start = ctx.arena.low();
  Outputs outputs(ctx, rows * width);
  View t = outputs.make(rows * width);
  {
    device::Arena::Scope scope(ctx.arena);
    View text = ctx.arena.temporary(text_rows * width);
    ForwardBlock weights(ctx, embed_block_, blocks_.first_block());
    const View table = positions_ < 0 ? pass.positions : ctx.weight(positions_);
    ctx.run(kernels::EmbeddingForward{.y = text,
                                      .ids = ids,
                                      .table = ctx.weight(table_),
                                      .positions = table.slice(0, config_.length * width),
                                      .rows = text_rows,
                                      .width = width,
                                      .vocabulary = config_.embedding_rows,
                                      .length = config_.length});
    ctx.run(kernels::GatherRows{.y = t,
                                .x = text,
                                .index = pass.selection.text_index,
                                .rows = rows,
                                .width = width,
                                .source_rows = text_rows});
  }
  auto count = [&](const Layer& layer) {
    return (blocks_.is_last(layer) ? pass.selection.last.count() : rows) * width;
  };
  auto run = [&](const Layer& layer, Stack::Kept& kept, View out, bool save) {
    forward_layer(ctx, layer, kept, out, save, pass);
  };
  return blocks_.forward(ctx, outputs, t, next_block, pass.blocks, count, run);
}

// Copies the last layer's rows out of a tensor of all rows.
void CaptionDecoder::pick_last(nn::Context& ctx, View from, View to,
                               const Selection& selection) const {
  ctx.run(kernels::GatherRows{.y = to,
                              .x = from,
                              .index = selection.last_index,
                              .rows = selection.last.count(),
                              .width = config_.width,
                              .source_rows = selection.rows.count()});
}

// out: none if only the tensors for backward are computed again.
void CaptionDecoder::forward_layer(nn::Context& ctx, const Layer& layer, Stack::Kept& kept,
                                   View out, bool save, const Pass& pass) const {
  const bool last = blocks_.is_last(layer), drop = ctx.train && drops();
  const nn::Sequences all = pass.selection.rows.sequences(),
                      some = last ? pass.selection.last.sequences() : all;
  const nn::Sequences image{pass.memory.length, ctx.batch * pass.memory.length};
  const nn::Rows rows = some.rows;
  const int64_t width = config_.width, elements = rows.count * width,
                columns = config_.length * width;
  Layer::Saved& s = kept.saved;
  s.n1 = ctx.make_activation(save, all.rows.count * width);
  s.norm1 = layer.norm1.make_saved(ctx, save, all.rows);
  layer.norm1.forward(ctx, kept.x, all.rows, s.n1, s.norm1);
  View t = kept.x;
  s.n1_last = s.n1;
  if (last) {
    t = ctx.arena.temporary(elements);
    s.n1_last = ctx.make_activation(save, elements);
    pick_last(ctx, kept.x, t, pass.selection);
    pick_last(ctx, s.n1, s.n1_last, pass.selection);
  }
  s.self = layer.self.make_saved(ctx, save, !last, some, all);
  layer.self.forward_heads(ctx, s.n1_last, some, s.n1, all, mask(pass.memory), pass.memory.flags,
                           s.self);
  s.x = ctx.make(save, elements);
  layer.self.forward_output(ctx, s.self, rows, s.x, drop ? View{} : t);
  if (drop) {
    nn::dropout(ctx, s.x, s.x, config_.dropout, "decoder/self", layer.number, columns);
    ctx.run(kernels::Add{.y = s.x, .a = s.x, .b = t});
  }
  s.n2 = ctx.make_activation(save, elements);
  s.norm2 = layer.norm2.make_saved(ctx, save, rows);
  layer.norm2.forward(ctx, s.x, rows, s.n2, s.norm2);
  s.cross = layer.cross.make_saved(ctx, save, false, some, image);
  layer.cross.forward_heads(ctx, s.n2, some, pass.memory.encoded, image, kernels::Mask::full, {},
                            s.cross);
  s.y = ctx.make(save, elements);
  layer.cross.forward_output(ctx, s.cross, rows, s.y, drop ? View{} : s.x);
  if (drop) {
    nn::dropout(ctx, s.y, s.y, config_.dropout, "decoder/cross", layer.number, columns);
    ctx.run(kernels::Add{.y = s.y, .a = s.y, .b = s.x});
  }
  s.n3 = ctx.make_activation(save, elements);
  s.norm3 = layer.norm3.make_saved(ctx, save, rows);
  layer.norm3.forward(ctx, s.y, rows, s.n3, s.norm3);
  s.mlp = blocks_.make_saved(ctx, layer.mlp, save, rows);
  if (out.none()) return layer.mlp.forward_hidden(ctx, s.n3, rows, s.mlp);
  layer.mlp.forward(ctx, s.n3, rows, s.mlp, out, s.y);  // no dropout on the MLP's output
}

// d: gradient of the layer's output, then of the input of these rows. d_all: gradient of all input
// rows; the same as d in all layers but the last. The last layer runs first and overwrites
// d_encoded; the others add to it.
void CaptionDecoder::backward_layer(nn::Context& ctx, const Layer& layer, Stack::Kept& kept,
                                    const nn::StreamGradient& d, const nn::StreamGradient& d_all,
                                    View d_encoded, const Pass& pass) const {
  const bool last = blocks_.is_last(layer), drop = ctx.train && drops();
  const nn::Sequences all = pass.selection.rows.sequences(),
                      some = last ? pass.selection.last.sequences() : all;
  const nn::Sequences image{pass.memory.length, ctx.batch * pass.memory.length};
  const nn::Rows rows = some.rows;
  const int64_t width = config_.width, columns = config_.length * width;
  const Memory& memory = pass.memory;
  Layer::Saved& s = kept.saved;
  blocks_.make_again(ctx, layer.mlp, s.n3, rows, s.mlp);
  const nn::StreamGradient dropped = drop ? ctx.arena.temporary(rows.count * width) : d;
  auto drop_again = [&](const char* name) {
    if (drop) nn::dropout(ctx, dropped.d, d.d, config_.dropout, name, layer.number, columns);
  };
  {
    device::Arena::Scope scope(ctx.arena);
    View dn = ctx.make_norm_gradient(rows.count * width);
    layer.mlp.backward(ctx, d, s.n3, rows, s.mlp, dn);
    layer.norm3.backward(ctx, dn, s.y, rows, s.norm3, d, Write::accumulate);
    drop_again("decoder/cross");
    layer.cross.backward(ctx, dropped, s.n2, some, memory.encoded, image, kernels::Mask::full, {},
                         s.cross, dn, d_encoded, last ? Write::overwrite : Write::accumulate);
    layer.norm2.backward(ctx, dn, s.x, rows, s.norm2, d, Write::accumulate);
  }
  drop_again("decoder/self");
  if (!last) {
    const View dn = layer.self.make_input_gradient(ctx, rows.count * width);
    layer.self.backward(ctx, dropped, s.n1, all, {}, all, mask(memory), memory.flags, s.self, dn,
                        {}, Write::overwrite);
    layer.norm1.backward(ctx, dn, kept.x, rows, s.norm1, d, Write::accumulate);
    return;
  }
  const View dn = ctx.arena.temporary(rows.count * width),
             dn_all = ctx.arena.temporary(all.rows.count * width);
  layer.self.backward(ctx, dropped, s.n1_last, some, s.n1, all, mask(memory), memory.flags, s.self,
                      dn, dn_all, Write::overwrite);
  auto spread = [&](View from, View to, Write write) {
    ctx.run(kernels::ScatterRows{.y = to,
                                 .x = from,
                                 .index = pass.selection.last_index,
                                 .rows = rows.count,
                                 .width = width,
                                 .target_rows = all.rows.count,
                                 .write = write});
  };
  spread(dn, dn_all, Write::accumulate);
  ctx.run(kernels::Fill{.y = d_all.d, .value = 0});
  spread(d.d, d_all.d, Write::overwrite);
  layer.norm1.backward(ctx, dn_all, kept.x, all.rows, s.norm1, d_all, Write::accumulate);
}

void CaptionDecoder::backward(nn::Context& ctx, View d, View d_encoded, int next_block,
                              Pass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  View d_all = ctx.arena.temporary(pass.selection.rows.count() * config_.width);
  const nn::StreamGradient last(ctx, d, config_.width, false),
      others(ctx, d_all, config_.width, false);
  last.round(ctx);
  blocks_.backward(
      ctx, embed_block_, pass.blocks,
      [&](const Layer& layer, Stack::Kept& kept) {
        forward_layer(ctx, layer, kept, {}, false, pass);
      },
      [&](const Layer& layer, Stack::Kept& kept) {
        backward_layer(ctx, layer, kept, blocks_.is_last(layer) ? last : others, others, d_encoded,
                       pass);
      });
  backward_block(ctx, embed_block_, next_block, [&] { backward_embedding(ctx, d_all, pass); });
  ctx.arena.pop_low(pass.start);
}

// d [selection.rows.count(), width]: gradient of the first layer's input
void CaptionDecoder::backward_embedding(nn::Context& ctx, View d, const Pass& pass) const {
  const int64_t width = config_.width, text_rows = ctx.batch * config_.length;
  const int64_t examples = ctx.batch / ctx.slices, m = text_rows / ctx.slices,
                n = config_.length * width;
  View d_text = ctx.arena.temporary(text_rows * width);
  ctx.run(kernels::Fill{.y = d_text, .value = 0});
  ctx.run(kernels::ScatterRows{.y = d_text,
                               .x = d,
                               .index = pass.selection.text_index,
                               .rows = pass.selection.rows.count(),
                               .width = width,
                               .target_rows = text_rows});
  if (!ctx.gradient(table_).view.none())
    nn::sum_over_slices(ctx, {table_}, [&](int64_t j, const auto& t) {
      ctx.run(kernels::EmbeddingBackward{.dtable = t[0].view,
                                         .dy = d_text.slice(j * m * width, m * width),
                                         .ids = pass.ids.slice(j * m, m),
                                         .rows = m,
                                         .width = width,
                                         .vocabulary = config_.embedding_rows,
                                         .write = t[0].write});
    });
  if (!ctx.gradient(positions_).view.none())
    nn::sum_over_slices(ctx, {positions_}, [&](int64_t j, const auto& t) {
      // Rows of the table beyond the text's length get no gradient.
      View used = t[0].view.slice(0, n), unused = t[0].view.slice(n, t[0].view.count - n);
      if (unused.count && t[0].write == Write::overwrite)
        ctx.run(kernels::Fill{.y = unused, .value = 0});
      ctx.run(kernels::ColumnSum{.out = used,
                                 .x = d_text.slice(j * examples * n, examples * n),
                                 .m = examples,
                                 .n = n,
                                 .write = t[0].write});
    });
}

int64_t CaptionDecoder::forward_flops(int64_t memory_length) const {
  const int64_t p = memory_length, e = config_.memory_width, d = config_.width, m = config_.mlp;
  const int64_t l = config_.length;
  int64_t self = 4 * 2 * l * d * d + 2 * 2 * l * l * d;
  int64_t cross = 2 * 2 * l * d * d + 2 * 2 * p * e * d + 2 * 2 * l * p * d;
  return config_.depth * (self + cross + 2 * 2 * l * d * m);
}

}  // namespace models
