#include "models/vit.hpp"

#include <cmath>

#include "kernels/gemm.hpp"
#include "kernels/patchify.hpp"

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

Vit::Vit(const VitConfig& config, Recompute recompute, ParameterList& list) : config_(config), blocks_(recompute) {
  const int64_t width = config.width;
  stem_block_ = list.begin_block("encoder/stem");
  const int64_t inputs = config.patch_height * config.patch_width * 3;
  stem_ = {.in = inputs, .out = width};
  stem_.kernel = list.add_operand("encoder/embedding/kernel", {config.patch_height, config.patch_width, 3, width},
                                  ParameterList::lecun(inputs));
  stem_.bias = list.add("encoder/embedding/bias", {width}, ParameterList::zeros());
  if (config.learned_positions)
    positions_ = list.add("encoder/pos_embedding", {1, config.patches(), width},
                          ParameterList::normal(1 / std::sqrt(double(width))));
  else
    table_ = sincos2d(config.grid_height(), config.grid_width(), width);
  for (int64_t i = 0; i < config.depth; ++i) {
    const std::string path = fmt::format("encoder/Transformer/encoderblock_{}", i);
    const int block = list.begin_block(path);
    Layer layer;
    layer.norm0 = list.layer_norm(path + "/LayerNorm_0", width, true);
    layer.norm1 = list.layer_norm(path + "/LayerNorm_1", width, true);
    layer.attention = list.attention(path + "/MultiHeadDotProductAttention_0", width, width, config.heads, true,
                                     ParameterList::xavier);
    layer.mlp = list.mlp(path + "/MlpBlock_0", width, config.mlp, true);
    layer.mlp.dropout_rate = config.dropout;
    layer.mlp.dropout_name = "encoder/mlp";
    layer.mlp.layer = int(i);
    blocks_.add(block, layer);
  }
  norm_block_ = list.begin_block("encoder/Transformer/encoder_norm");
  norm_ = list.layer_norm("encoder/Transformer/encoder_norm", width, true);
}

View Vit::forward(nn::Context& ctx, View image, int next_block, Pass& pass) const {
  const int64_t length = config_.patches(), width = config_.width, rows = ctx.batch * length;
  pass.start = ctx.arena.low();
  Outputs outputs(ctx, rows * width);
  View x = outputs.make(rows * width);
  {
    ForwardBlock weights(ctx, stem_block_, blocks_.first_block());
    device::Arena::Scope scope(ctx.arena);
    pass.patches = ctx.make_activation(ctx.keep, rows * stem_.in);
    ctx.run(kernels::Patchify{.patches = pass.patches, .image = image, .batch = ctx.batch,
                              .height = config_.image_height, .width = config_.image_width,
                              .patch = config_.patch_height, .patch_width = config_.patch_width, .range = bytes_});
    stem_.forward(ctx, pass.patches, rows, x);
    const View table = positions_ < 0 ? pass.positions : ctx.weight(positions_);
    ctx.run(kernels::AddTable{.y = x, .x = x, .table = table, .rows = rows, .width = width, .length = length});
    if (ctx.train && drops()) nn::dropout(ctx, x, x, config_.dropout, "encoder/posemb", 0, length * width);
  }
  auto count = [&](const Layer&) { return rows * width; };
  auto run = [&](const Layer& layer, Stack::Kept& kept, View y, bool save) { forward_layer(ctx, layer, kept, y, save); };
  pass.tokens = blocks_.forward(ctx, outputs, x, norm_block_, pass.blocks, count, run);
  pass.norm_mark = ctx.arena.low();
  View encoded = ctx.arena.save(rows * width, ctx.activation());
  ForwardBlock weights(ctx, norm_block_, next_block);
  pass.norm = norm_.make_saved(ctx, true, rows);
  norm_.forward(ctx, pass.tokens, rows, encoded, pass.norm);
  return encoded;
}

// y: none where only what backward needs is made again.
void Vit::forward_layer(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View y, bool save) const {
  const int64_t length = config_.patches(), width = config_.width, rows = ctx.batch * length;
  const bool drop = ctx.train && drops();
  const int number = layer.mlp.layer;
  Layer::Saved& s = kept.saved;
  s.n0 = ctx.make_activation(save, rows * width);
  s.norm0 = layer.norm0.make_saved(ctx, save, rows);
  layer.norm0.forward(ctx, kept.x, rows, s.n0, s.norm0);
  const nn::Sequences all{length, rows};
  s.attention = layer.attention.make_saved(ctx, save, all, all);
  layer.attention.forward_heads(ctx, s.n0, all, s.n0, all, kernels::Mask::full, {}, s.attention);
  s.a = ctx.make(save, rows * width);
  layer.attention.forward_output(ctx, s.attention, rows, s.a, drop ? View{} : kept.x);
  if (drop) {
    nn::dropout(ctx, s.a, s.a, config_.dropout, "encoder/attention", number, length * width);
    ctx.run(kernels::Add{.y = s.a, .a = s.a, .b = kept.x});
  }
  s.n1 = ctx.make_activation(save, rows * width);
  s.norm1 = layer.norm1.make_saved(ctx, save, rows);
  layer.norm1.forward(ctx, s.a, rows, s.n1, s.norm1);
  s.mlp = blocks_.make_saved(ctx, layer.mlp, save, rows);
  if (y.none()) return layer.mlp.forward_hidden(ctx, s.n1, rows, s.mlp);
  layer.mlp.forward(ctx, s.n1, rows, s.mlp, y, drop ? View{} : s.a);
  if (drop) {
    nn::dropout(ctx, y, y, config_.dropout, "encoder/mlp_output", number, length * width);
    ctx.run(kernels::Add{.y = y, .a = y, .b = s.a});
  }
}

void Vit::backward_layer(nn::Context& ctx, const Layer& layer, Stack::Kept& kept, View d) const {
  const int64_t length = config_.patches(), width = config_.width, rows = ctx.batch * length;
  const bool drop = ctx.train && drops();
  const int number = layer.mlp.layer;
  Layer::Saved& s = kept.saved;
  blocks_.make_again(ctx, layer.mlp, s.n1, rows, s.mlp);
  View dn = ctx.arena.temporary(rows * width);
  View dropped = drop ? ctx.arena.temporary(rows * width) : d;
  if (drop) nn::dropout(ctx, dropped, d, config_.dropout, "encoder/mlp_output", number, length * width);
  layer.mlp.backward(ctx, dropped, s.n1, rows, s.mlp, dn);
  layer.norm1.backward(ctx, dn, s.a, rows, s.norm1, d, Write::accumulate);
  if (drop) nn::dropout(ctx, dropped, d, config_.dropout, "encoder/attention", number, length * width);
  const nn::Sequences all{length, rows};
  layer.attention.backward(ctx, dropped, s.n0, all, {}, all, kernels::Mask::full, {}, s.attention, dn, {},
                           Write::overwrite);
  layer.norm0.backward(ctx, dn, kept.x, rows, s.norm0, d, Write::accumulate);
}

void Vit::backward(nn::Context& ctx, View d, Pass& pass) const {
  const int64_t length = config_.patches(), width = config_.width, rows = ctx.batch * length;
  backward_block(ctx, norm_block_, blocks_.last_block(), [&] {
    device::Arena::Scope scope(ctx.arena);
    View dx = ctx.arena.temporary(rows * width);
    norm_.backward(ctx, d, pass.tokens, rows, pass.norm, dx, Write::overwrite);
    ctx.run(kernels::Copy{.y = d, .x = dx});
  });
  ctx.arena.pop_low(pass.norm_mark);
  blocks_.backward(
      ctx, stem_block_, pass.blocks,
      [&](const Layer& layer, Stack::Kept& kept) { forward_layer(ctx, layer, kept, {}, false); },
      [&](const Layer& layer, Stack::Kept& kept) { backward_layer(ctx, layer, kept, d); });
  backward_block(ctx, stem_block_, -1, [&] {
    const int64_t examples = ctx.batch / ctx.slices, columns = length * width;
    if (ctx.train && drops()) nn::dropout(ctx, d, d, config_.dropout, "encoder/posemb", 0, columns);
    if (!ctx.gradient(positions_).view.none())
      nn::sum_over_slices(ctx, {positions_}, [&](int64_t j, const auto& t) {
        ctx.run(kernels::ColumnSum{.out = t[0].view, .x = d.slice(j * examples * columns, examples * columns),
                                   .m = examples, .n = columns, .write = t[0].write});
      });
    stem_.backward(ctx, d, pass.patches, rows, {});
  });
  ctx.arena.pop_low(pass.start);
}

int64_t Vit::forward_flops() const {
  const int64_t p = config_.patches(), e = config_.width, m = config_.mlp;
  return input_flops() + config_.depth * (4 * 2 * p * e * e + 2 * 2 * p * p * e + 2 * 2 * p * e * m);
}

}  // namespace models
