#include "models/caption_decoder.hpp"

#include <cmath>

#include "kernels/embedding.hpp"
#include "kernels/gemm.hpp"
#include "models/block_scope.hpp"
#include "models/vit.hpp"

namespace models {

void CaptionDecoder::Selection::place(nn::Context& ctx) {
  index_.reserve(size_t(ctx.batch * rows.length));
  rows.place(ctx), last.place(ctx);
  rows.index_in_text(index_);
  text_index = ctx.table(true, index_);
  last.index_in(rows, index_);
  last_index = ctx.table(true, index_);
}

CaptionDecoder::CaptionDecoder(const CappaOptions& options, Recompute recompute, ParameterList& list)
    : options_(options), recompute_(recompute), patches_(options.patches()), width_(options.decoder_width()),
      length_(options.length()), dropout_(float(options.decoder.dropout)) {
  embed_block_ = list.begin_block("decoder/embed");
  table_ = list.add("decoder/EmbedTargets/embedding", {options.embedding_rows(), width_}, ParameterList::normal(1));
  if (options.posemb == "learn")
    positions_ = list.add("pos_embedding_decoder", {1, options.seq_len, width_}, ParameterList::normal(1 / std::sqrt(double(width_))));
  else
    position_table_ = sincos2d(1, options.seq_len, width_);
  auto lecun = [](int64_t fan_in, int64_t) { return ParameterList::lecun(fan_in); };
  for (int64_t i = 0; i < options.decoder.depth; ++i) {
    std::string path = fmt::format("decoder/EncDecBlock{}", i);
    Block b;
    b.index = list.begin_block(path);
    b.layer = int(i);
    bool bias = options.decoder.bias;
    b.norm1 = list.layer_norm(path + "/LayerNorm1", width_, bias);
    b.norm2 = list.layer_norm(path + "/LayerNorm2", width_, bias);
    b.norm3 = list.layer_norm(path + "/LayerNorm3", width_, bias);
    b.self = list.attention(path + "/SelfAttn", width_, width_, options.decoder_heads(), false, lecun);
    b.cross = list.attention(path + "/CrossAttn", width_, options.encoder.width, options.decoder_heads(), false, lecun);
    b.mlp = list.mlp(path + "/MLP", width_, options.decoder_mlp(), bias);
    b.self.weight_dropout = b.cross.weight_dropout = b.mlp.dropout_rate = dropout_;
    b.self.layer = b.cross.layer = b.mlp.layer = int(i);
    b.self.dropout_name = "decoder/self_weights", b.cross.dropout_name = "decoder/cross_weights", b.mlp.dropout_name = "decoder/mlp";
    blocks_.push_back(b);
  }
  saved_.resize(blocks_.size());
}

View CaptionDecoder::forward(nn::Context& ctx, View ids, const Memory& memory, const Selection& selection, int next_block) {
  memory_ = memory, ids_ = ids, selection_ = &selection;
  const int64_t rows = selection.rows.count(), text_rows = ctx.batch * length_;
  start_ = ctx.arena.low();
  View spare[2];
  if (!ctx.keep)
    for (View& v : spare) v = ctx.arena.save(rows * width_);
  int turn = 0;
  auto output = [&](int64_t n) { return ctx.keep ? ctx.arena.save(n * width_) : spare[turn ^= 1].slice(0, n * width_); };

  View t = output(rows);
  {
    device::Arena::Scope scope(ctx.arena);
    View text = ctx.arena.temporary(text_rows * width_);
    ForwardBlock weights(ctx, embed_block_, blocks_.front().index);
    View table = positions_ < 0 ? table_there_ : ctx.weight(positions_);
    ctx.run(kernels::EmbeddingForward{.y = text, .ids = ids, .table = ctx.weight(table_), .positions = table.slice(0, length_ * width_),
                                      .rows = text_rows, .width = width_, .vocabulary = options_.embedding_rows(),
                                      .length = length_});
    ctx.run(kernels::GatherRows{.y = t, .x = text, .index = selection_->text_index, .rows = rows, .width = width_,
                                .source_rows = text_rows});
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Saved& s = saved_[i];
    ForwardBlock weights(ctx, blocks_[i].index, i + 1 < blocks_.size() ? blocks_[i + 1].index : next_block);
    device::Arena::Scope scope(ctx.arena);
    s.mark = ctx.arena.low();
    s.t = t;
    View out = output(is_last(blocks_[i]) ? selection.last.count() : rows);
    forward_block(ctx, blocks_[i], s, out, ctx.keep && recompute_ != Recompute::block);
    t = out;
  }
  return t;
}

// The last layer's rows of a tensor of all rows.
void CaptionDecoder::pick_last(nn::Context& ctx, View from, View to) const {
  ctx.run(kernels::GatherRows{.y = to, .x = from, .index = selection_->last_index, .rows = selection_->last.count(), .width = width_,
                              .source_rows = selection_->rows.count()});
}

// out: none when only what backward needs is wanted.
void CaptionDecoder::forward_block(nn::Context& ctx, const Block& b, Saved& s, View out, bool save) const {
  const nn::Sequences all = selection_->rows.sequences(), some = is_last(b) ? selection_->last.sequences() : all;
  const nn::Sequences image{patches_, ctx.batch * patches_};
  const nn::Rows rows = some.rows;
  const int64_t elements = rows.count * width_, columns = length_ * width_;
  bool drop = ctx.train && dropout_ > 0;
  s.n1 = ctx.make_activation(save, all.rows.count * width_);
  s.norm1 = b.norm1.make_saved(ctx, save, all.rows);
  b.norm1.forward(ctx, s.t, all.rows, s.n1, s.norm1);
  View t = s.t;
  s.n1_last = s.n1;
  if (is_last(b)) {
    t = ctx.arena.temporary(elements), s.n1_last = ctx.make_activation(save, elements);
    pick_last(ctx, s.t, t), pick_last(ctx, s.n1, s.n1_last);
  }
  s.self = b.self.make_saved(ctx, save, some, all);
  b.self.forward_heads(ctx, s.n1_last, some, s.n1, all, mask(), memory_.flags, s.self);
  s.x = ctx.make(save, elements);
  b.self.forward_output(ctx, s.self, rows, s.x, drop ? View{} : t);
  if (drop) {
    nn::dropout(ctx, s.x, s.x, dropout_, "decoder/self", b.layer, columns);
    ctx.run(kernels::Add{.y = s.x, .a = s.x, .b = t});
  }
  s.n2 = ctx.make_activation(save, elements);
  s.norm2 = b.norm2.make_saved(ctx, save, rows);
  b.norm2.forward(ctx, s.x, rows, s.n2, s.norm2);
  s.cross = b.cross.make_saved(ctx, save, some, image);
  b.cross.forward_heads(ctx, s.n2, some, memory_.encoded, image, kernels::Mask::full, {}, s.cross);
  s.y = ctx.make(save, elements);
  b.cross.forward_output(ctx, s.cross, rows, s.y, drop ? View{} : s.x);
  if (drop) {
    nn::dropout(ctx, s.y, s.y, dropout_, "decoder/cross", b.layer, columns);
    ctx.run(kernels::Add{.y = s.y, .a = s.y, .b = s.x});
  }
  s.n3 = ctx.make_activation(save, elements);
  s.norm3 = b.norm3.make_saved(ctx, save, rows);
  b.norm3.forward(ctx, s.y, rows, s.n3, s.norm3);
  s.mlp = b.mlp.make_saved(ctx, save && recompute_ < Recompute::mlp, save && recompute_ == Recompute::none, rows);
  if (out.none()) return b.mlp.forward_hidden(ctx, s.n3, rows, s.mlp);
  b.mlp.forward(ctx, s.n3, rows, s.mlp, out, s.y);  // no dropout on the MLP's output
}

// d: gradient of the block's result, then of what of its input goes on; d_all: gradient of its whole input, which is d in all
// layers but the last.
void CaptionDecoder::backward_of_block(nn::Context& ctx, const Block& b, Saved& s, View d, View d_all, View d_encoded,
                                       Write encoded_write) const {
  device::Arena::Scope scope(ctx.arena);
  const nn::Sequences all = selection_->rows.sequences(), some = is_last(b) ? selection_->last.sequences() : all;
  const nn::Sequences image{patches_, ctx.batch * patches_};
  const nn::Rows rows = some.rows;
  const int64_t columns = length_ * width_;
  bool drop = ctx.train && dropout_ > 0;
  if (recompute_ == Recompute::block) forward_block(ctx, b, s, {}, false);
  if (recompute_ == Recompute::gelu) {
    s.mlp.after_gelu = ctx.make_activation(false, rows.count * b.mlp.hidden.out);
    b.mlp.activate(ctx, rows, s.mlp);
  }
  if (recompute_ == Recompute::mlp) {
    s.mlp = b.mlp.make_saved(ctx, false, false, rows);
    b.mlp.forward_hidden(ctx, s.n3, rows, s.mlp);
  }
  View dn = ctx.arena.temporary(rows.count * width_);
  View dropped = drop ? ctx.arena.temporary(rows.count * width_) : d;
  b.mlp.backward(ctx, d, s.n3, rows, s.mlp, dn);
  b.norm3.backward(ctx, dn, s.y, rows, s.norm3, d, Write::accumulate);
  if (drop) nn::dropout(ctx, dropped, d, dropout_, "decoder/cross", b.layer, columns);
  b.cross.backward(ctx, dropped, s.n2, some, memory_.encoded, image, kernels::Mask::full, {}, s.cross, dn, d_encoded,
                   encoded_write);
  b.norm2.backward(ctx, dn, s.x, rows, s.norm2, d, Write::accumulate);
  if (drop) nn::dropout(ctx, dropped, d, dropout_, "decoder/self", b.layer, columns);
  if (!is_last(b)) {
    b.self.backward(ctx, dropped, s.n1, all, {}, all, mask(), memory_.flags, s.self, dn, {}, Write::overwrite);
    b.norm1.backward(ctx, dn, s.t, rows, s.norm1, d, Write::accumulate);
    return;
  }
  View dn_all = ctx.arena.temporary(all.rows.count * width_);
  b.self.backward(ctx, dropped, s.n1_last, some, s.n1, all, mask(), memory_.flags, s.self, dn, dn_all, Write::overwrite);
  auto spread = [&](View from, View to, Write write) {
    ctx.run(kernels::ScatterRows{.y = to, .x = from, .index = selection_->last_index, .rows = rows.count, .width = width_,
                                 .target_rows = all.rows.count, .write = write});
  };
  spread(dn, dn_all, Write::accumulate);
  ctx.run(kernels::Fill{.y = d_all, .value = 0});
  spread(d, d_all, Write::overwrite);
  b.norm1.backward(ctx, dn_all, s.t, all.rows, s.norm1, d_all, Write::accumulate);
}

void CaptionDecoder::backward(nn::Context& ctx, View d, View d_encoded, int next_block) {
  device::Arena::Scope scope(ctx.arena);
  const int64_t rows = selection_->rows.count(), text_rows = ctx.batch * length_;
  View d_all = ctx.arena.temporary(rows * width_);
  for (size_t i = blocks_.size(); i-- > 0;) {
    Write encoded_write = i + 1 == blocks_.size() ? Write::overwrite : Write::accumulate;
    backward_block(ctx, blocks_[i].index, i ? blocks_[i - 1].index : embed_block_,
                   [&] { backward_of_block(ctx, blocks_[i], saved_[i], d, d_all, d_encoded, encoded_write); });
    d = d_all;
    ctx.arena.pop_low(saved_[i].mark);
  }
  backward_block(ctx, embed_block_, next_block, [&] {
    int64_t examples = ctx.batch / ctx.slices, m = text_rows / ctx.slices, n = length_ * width_;
    View d_text = ctx.arena.temporary(text_rows * width_);
    ctx.run(kernels::Fill{.y = d_text, .value = 0});
    ctx.run(kernels::ScatterRows{.y = d_text, .x = d, .index = selection_->text_index, .rows = rows, .width = width_,
                                 .target_rows = text_rows});
    if (!ctx.gradient(table_).view.none())
      nn::sum_over_slices(ctx, {table_}, [&](int64_t j, const auto& t) {
        ctx.run(kernels::EmbeddingBackward{.dtable = t[0].view, .dy = d_text.slice(j * m * width_, m * width_), .ids = ids_.slice(j * m, m),
                                           .rows = m, .width = width_, .vocabulary = options_.embedding_rows(), .write = t[0].write});
      });
    if (!ctx.gradient(positions_).view.none())
      nn::sum_over_slices(ctx, {positions_}, [&](int64_t j, const auto& t) {
        // Rows of the table beyond the text's length (L < seq_len) get no gradient.
        View used = t[0].view.slice(0, n), unused = t[0].view.slice(n, t[0].view.count - n);
        if (unused.count && t[0].write == Write::overwrite) ctx.run(kernels::Fill{.y = unused, .value = 0});
        ctx.run(kernels::ColumnSum{.out = used, .x = d_text.slice(j * examples * n, examples * n), .m = examples, .n = n,
                                   .write = t[0].write});
      });
  });
  ctx.arena.pop_low(start_);
}

int64_t CaptionDecoder::forward_flops() const {
  int64_t p = patches_, e = options_.encoder.width, d = width_, m = options_.decoder_mlp(), l = options_.seq_len;
  int64_t self = 4 * 2 * l * d * d + 2 * 2 * l * l * d;
  int64_t cross = 2 * 2 * l * d * d + 2 * 2 * p * e * d + 2 * 2 * l * p * d;
  return options_.decoder.depth * (self + cross + 2 * 2 * l * d * m);
}

}  // namespace models
