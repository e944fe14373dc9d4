#include "models/vit.hpp"

#include <cmath>

#include "kernels/gemm.hpp"
#include "kernels/patchify.hpp"
#include "models/block_scope.hpp"

namespace models {

std::vector<float> sincos2d(int64_t height, int64_t width, int64_t columns) {
  std::vector<float> out(size_t(height * width * columns));
  int64_t q = columns / 4;
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t k = 0; k < q; ++k) {
        // omega_k = 10000^(-k / (q - 1)); a single frequency (q = 1) has the published 0/0 = NaN, which nobody can train with.
        double omega = std::pow(10000.0, -double(k) / double(std::max<int64_t>(q - 1, 1)));
        float* row = out.data() + (y * width + x) * columns;
        row[k] = float(std::sin(double(x) * omega)), row[q + k] = float(std::cos(double(x) * omega));
        row[2 * q + k] = float(std::sin(double(y) * omega)), row[3 * q + k] = float(std::cos(double(y) * omega));
      }
  return out;
}

Vit::Vit(const CappaOptions& options, Recompute recompute, ParameterList& list)
    : options_(options), recompute_(recompute), patches_(options.patches()), width_(options.encoder.width),
      dropout_(float(options.encoder.dropout)) {
  const EncoderOptions& e = options.encoder;
  stem_block_ = list.begin_block("encoder/stem");
  int64_t inputs = e.patch * e.patch_columns() * 3;
  stem_ = {.in = inputs, .out = width_};
  stem_.kernel = list.add_operand("encoder/embedding/kernel", {e.patch, e.patch_columns(), 3, width_}, ParameterList::lecun(inputs));
  stem_.bias = list.add("encoder/embedding/bias", {width_}, ParameterList::zeros());
  if (options.posemb == "learn")
    positions_ = list.add("encoder/pos_embedding", {1, patches_, width_}, ParameterList::normal(1 / std::sqrt(double(width_))));
  else
    table_ = sincos2d(options.height() / e.patch, options.width() / e.patch_columns(), width_);
  for (int64_t i = 0; i < e.depth; ++i) {
    std::string path = fmt::format("encoder/Transformer/encoderblock_{}", i);
    Block b;
    b.index = list.begin_block(path);
    b.norm0 = list.layer_norm(path + "/LayerNorm_0", width_, true);
    b.norm1 = list.layer_norm(path + "/LayerNorm_1", width_, true);
    b.attention = list.attention(path + "/MultiHeadDotProductAttention_0", width_, width_, e.heads, true, ParameterList::xavier);
    b.mlp = list.mlp(path + "/MlpBlock_0", width_, e.mlp, true);
    b.mlp.dropout_rate = dropout_, b.mlp.dropout_name = "encoder/mlp", b.mlp.layer = int(i);
    blocks_.push_back(b);
  }
  norm_block_ = list.begin_block("encoder/Transformer/encoder_norm");
  norm_ = list.layer_norm("encoder/Transformer/encoder_norm", width_, true);
  saved_.resize(blocks_.size());
}

View Vit::forward(nn::Context& ctx, View image, int next_block) {
  int64_t rows = ctx.batch * patches_;
  bool drop = ctx.train && dropout_ > 0;
  start_ = ctx.arena.low();
  // Without a backward pass two buffers are enough: a block reads one and writes the other.
  View spare[2];
  if (!ctx.keep)
    for (View& v : spare) v = ctx.arena.save(rows * width_);
  int turn = 0;
  auto output = [&] { return ctx.keep ? ctx.arena.save(rows * width_) : spare[turn ^= 1]; };

  View x = output();
  {
    ForwardBlock weights(ctx, stem_block_, blocks_.front().index);
    device::Arena::Scope scope(ctx.arena);
    patch_rows_ = ctx.make_activation(ctx.keep, rows * stem_.in);
    ctx.run(kernels::Patchify{.patches = patch_rows_, .image = image, .batch = ctx.batch, .height = options_.height(),
                              .width = options_.width(), .patch = options_.encoder.patch,
                              .patch_width = options_.encoder.patch_width, .range = bytes_});
    stem_.forward(ctx, patch_rows_, rows, x);
    View table = positions_ < 0 ? table_there_ : ctx.weight(positions_);
    ctx.run(kernels::AddTable{.y = x, .x = x, .table = table, .rows = rows, .width = width_, .length = patches_});
    if (drop) nn::dropout(ctx, x, x, dropout_, "encoder/posemb", 0, patches_ * width_);
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Saved& s = saved_[i];
    ForwardBlock weights(ctx, blocks_[i].index, i + 1 < blocks_.size() ? blocks_[i + 1].index : norm_block_);
    device::Arena::Scope scope(ctx.arena);
    s.mark = ctx.arena.low();
    s.x = x;
    View y = output();
    forward_block(ctx, blocks_[i], s, y, ctx.keep && recompute_ != Recompute::block);
    x = y;
  }
  last_ = x;
  norm_mark_ = ctx.arena.low();
  View encoded = ctx.arena.save(rows * width_, ctx.activation());
  ForwardBlock weights(ctx, norm_block_, next_block);
  norm_saved_ = norm_.make_saved(ctx, true, rows);
  norm_.forward(ctx, x, rows, encoded, norm_saved_);
  return encoded;
}

// y: none when only what backward needs is wanted.
void Vit::forward_block(nn::Context& ctx, const Block& b, Saved& s, View y, bool save) const {
  int64_t rows = ctx.batch * patches_;
  bool drop = ctx.train && dropout_ > 0;
  int layer = b.mlp.layer;
  s.n0 = ctx.make_activation(save, rows * width_);
  s.norm0 = b.norm0.make_saved(ctx, save, rows);
  b.norm0.forward(ctx, s.x, rows, s.n0, s.norm0);
  nn::Sequences all{patches_, rows};
  s.attention = b.attention.make_saved(ctx, save, all, all);
  b.attention.forward_heads(ctx, s.n0, all, s.n0, all, kernels::Mask::full, {}, s.attention);
  s.a = ctx.make(save, rows * width_);
  b.attention.forward_output(ctx, s.attention, rows, s.a, drop ? View{} : s.x);
  if (drop) {
    nn::dropout(ctx, s.a, s.a, dropout_, "encoder/attention", layer, patches_ * width_);
    ctx.run(kernels::Add{.y = s.a, .a = s.a, .b = s.x});
  }
  s.n1 = ctx.make_activation(save, rows * width_);
  s.norm1 = b.norm1.make_saved(ctx, save, rows);
  b.norm1.forward(ctx, s.a, rows, s.n1, s.norm1);
  s.mlp = b.mlp.make_saved(ctx, save && recompute_ < Recompute::mlp, save && recompute_ == Recompute::none, rows);
  if (y.none()) return b.mlp.forward_hidden(ctx, s.n1, rows, s.mlp);
  b.mlp.forward(ctx, s.n1, rows, s.mlp, y, drop ? View{} : s.a);
  if (drop) {
    nn::dropout(ctx, y, y, dropout_, "encoder/mlp_output", layer, patches_ * width_);
    ctx.run(kernels::Add{.y = y, .a = y, .b = s.a});
  }
}

void Vit::backward_of_block(nn::Context& ctx, const Block& b, Saved& s, View d) const {
  device::Arena::Scope scope(ctx.arena);
  int64_t rows = ctx.batch * patches_;
  bool drop = ctx.train && dropout_ > 0;
  int layer = b.mlp.layer;
  if (recompute_ == Recompute::block) forward_block(ctx, b, s, {}, false);
  if (recompute_ == Recompute::gelu) {
    s.mlp.after_gelu = ctx.make_activation(false, rows * b.mlp.hidden.out);
    b.mlp.activate(ctx, rows, s.mlp);
  }
  if (recompute_ == Recompute::mlp) {
    s.mlp = b.mlp.make_saved(ctx, false, false, rows);
    b.mlp.forward_hidden(ctx, s.n1, rows, s.mlp);
  }
  View dn = ctx.arena.temporary(rows * width_);
  View dropped = drop ? ctx.arena.temporary(rows * width_) : d;
  if (drop) nn::dropout(ctx, dropped, d, dropout_, "encoder/mlp_output", layer, patches_ * width_);
  b.mlp.backward(ctx, dropped, s.n1, rows, s.mlp, dn);
  b.norm1.backward(ctx, dn, s.a, rows, s.norm1, d, Write::accumulate);
  if (drop) nn::dropout(ctx, dropped, d, dropout_, "encoder/attention", layer, patches_ * width_);
  nn::Sequences all{patches_, rows};
  b.attention.backward(ctx, dropped, s.n0, all, {}, all, kernels::Mask::full, {}, s.attention, dn, {}, Write::overwrite);
  b.norm0.backward(ctx, dn, s.x, rows, s.norm0, d, Write::accumulate);
}

void Vit::backward(nn::Context& ctx, View d) {
  int64_t rows = ctx.batch * patches_;
  backward_block(ctx, norm_block_, blocks_.back().index, [&] {
    device::Arena::Scope scope(ctx.arena);
    View dx = ctx.arena.temporary(rows * width_);
    norm_.backward(ctx, d, last_, rows, norm_saved_, dx, Write::overwrite);
    ctx.run(kernels::Copy{.y = d, .x = dx});
  });
  ctx.arena.pop_low(norm_mark_);
  for (size_t i = blocks_.size(); i-- > 0;) {
    backward_block(ctx, blocks_[i].index, i ? blocks_[i - 1].index : stem_block_,
                   [&] { backward_of_block(ctx, blocks_[i], saved_[i], d); });
    ctx.arena.pop_low(saved_[i].mark);
  }
  backward_block(ctx, stem_block_, -1, [&] {
    if (ctx.train && dropout_ > 0) nn::dropout(ctx, d, d, dropout_, "encoder/posemb", 0, patches_ * width_);
    int64_t examples = ctx.batch / ctx.slices, columns = patches_ * width_;
    if (!ctx.gradient(positions_).view.none())
      nn::sum_over_slices(ctx, {positions_}, [&](int64_t j, const auto& t) {
        ctx.run(kernels::ColumnSum{.out = t[0].view, .x = d.slice(j * examples * columns, examples * columns), .m = examples,
                                   .n = columns, .write = t[0].write});
      });
    stem_.backward(ctx, d, patch_rows_, rows, {});
  });
  ctx.arena.pop_low(start_);
}

int64_t Vit::forward_flops() const {
  int64_t p = patches_, e = width_, m = options_.encoder.mlp;
  return input_flops() + options_.encoder.depth * (4 * 2 * p * e * e + 2 * 2 * p * p * e + 2 * 2 * p * e * m);
}

}  // namespace models
