// SPDX-License-Identifier: Apache-2.0
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
        // omega_k = 10000^(-k / (q - 1)). The published formula has 0/0 = NaN for a single
        // frequency (q = 1); omega is 1 here.
        double omega = std::pow(10000.0, -double(k) / double(std::max<int64_t>(q - 1, 1)));
        float* row = out.data() + (y * width + x) * columns;
        row[k] = float(std::sin(double(x) * omega));
        row[q + k] = float(std::cos(double(x) * omega));
        row[2 * q + k] = float(std::sin(double(y) * omega));
        row[3 * q + k] = float(std::cos(double(y) * omega));
      }
  return out;
}

Vit::Vit(const VitConfig& config, Recompute recompute, ParameterList& list)
    : config_(config), blocks_(recompute) {
  const int64_t width = config.width;
  stem_block_ = list.begin_block("encoder/stem");
  const int64_t inputs = config.patch_height * config.patch_width * 3;
  stem_ = {.in = inputs, .out = width, .aligned_rows = true};
  stem_.kernel = list.add_operand("encoder/embedding/kernel",
                                  {config.patch_height, config.patch_width, 3, width},
                                  ParameterList::lecun(inputs));
  stem_.bias = list.add("encoder/embedding/bias", {width}, ParameterList::zeros());
  if (config.learned_positions)
    positions_ = list.add("encoder/pos_embedding", {1, config.patches(), width},
                          ParameterList::normal(1 / std::sqrt(double(width))));
  else
    table_ = sincos2d(config.grid_height(), config.grid_width(), width);
  if (config.class_token)
    class_token_ = list.add("encoder/cls", {1, 1, width}, ParameterList::zeros());
  for (int64_t i = 0; i < config.depth; ++i) {
    const std::string path = fmt::format("encoder/Transformer/encoderblock_{}", i);
    const int block = list.begin_block(path);
    Layer layer;
    layer.norm0 = list.layer_norm(path + "/LayerNorm_0", width, true);
    layer.norm1 = list.layer_norm(path + "/LayerNorm_1", width, true);
    layer.attention = list.attention(path + "/MultiHeadDotProductAttention_0", width, width,
                                     config.heads, true, ParameterList::xavier);
    layer.mlp = list.mlp(path + "/MlpBlock_0", width, config.mlp, true);
    layer.mlp.dropout_rate = config.dropout;
    layer.mlp.dropout_name = "encoder/mlp";
    layer.mlp.layer = int(i);
    blocks_.add(block, layer);
  }
  norm_block_ = list.begin_block("encoder/Transformer/encoder_norm");
  norm_ = list.layer_norm("encoder/Transformer/encoder_norm", width, true);
}

void Vit::place(nn::Context& ctx, Pass& pass) const {
  pass.sizes.clear();
  if (positions_ < 0) pass.positions = ctx.table(true, table_);
  if (class_token_ < 0) return;
  const int64_t patches = config_.patches(), length = config_.tokens();
  std::vector<int32_t> token_sources, patch_tokens, class_tokens;
  for (int64_t b = 0; b < ctx.batch; ++b) {
    class_tokens.push_back(int32_t(b * length));
    token_sources.push_back(int32_t(ctx.batch * patches));
    for (int64_t p = 0; p < patches; ++p) {
      patch_tokens.push_back(int32_t(b * length + 1 + p));
      token_sources.push_back(int32_t(b * patches + p));
    }
  }
  pass.token_rows.sources = ctx.table(true, token_sources);
  pass.token_rows.patches = ctx.table(true, patch_tokens);
  pass.token_rows.classes = ctx.table(true, class_tokens);
}

// Writes the tokens of the image to x [batch * tokens, width].
void Vit::embed(nn::Context& ctx, View image, View x, Pass& pass) const {
  const int64_t patches = config_.patches(), width = config_.width, rows = ctx.batch * patches;
  ForwardBlock weights(ctx, stem_block_, blocks_.first_block());
  device::Arena::Scope scope(ctx.arena);
  pass.patches = ctx.make_activation(ctx.keep, rows * stem_.row_of_x(ctx));
  ctx.run(kernels::Patchify{.patches = pass.patches,
                            .image = image,
                            .batch = ctx.batch,
                            .height = config_.image_height,
                            .width = config_.image_width,
                            .patch = config_.patch_height,
                            .patch_width = config_.patch_width,
                            .range = bytes_,
                            .stride = stem_.row_of_x(ctx)});
  const View all = class_token_ < 0 ? x : ctx.arena.temporary((rows + 1) * width),
             embedded = all.slice(0, rows * width);
  stem_.forward(ctx, pass.patches, rows, embedded);
  const View table = positions_ < 0 ? pass.positions : ctx.weight(positions_);
  ctx.run(kernels::AddTable{.y = embedded,
                            .x = embedded,
                            .table = table,
                            .rows = rows,
                            .width = width,
                            .length = patches});
  if (class_token_ >= 0) {
    ctx.run(kernels::Copy{.y = all.slice(rows * width, width), .x = ctx.weight(class_token_)});
    ctx.run(kernels::GatherRows{.y = x,
                                .x = all,
                                .index = pass.token_rows.sources,
                                .rows = ctx.batch * config_.tokens(),
                                .width = width,
                                .source_rows = rows + 1});
  }
  if (ctx.train && drops())
    nn::dropout(ctx, x, x, config_.dropout, "encoder/posemb", 0, config_.tokens() * width);
}

View Vit::forward(nn::Context& ctx, View image, int next_block, Pass& pass) const {
  const nn::Sequences all = sequences(ctx, pass);
  const int64_t width = config_.width, rows = all.rows.count;
  pass.start = ctx.arena.low();
  Outputs outputs(ctx, rows * width);
  View x = outputs.make(rows * width);
  if (pass.sizes.empty())
    embed(ctx, image, x, pass);
  else
    embed_views(ctx, x, pass);
  auto count = [&](const Layer&) { return rows * width; };
  auto run = [&](const Layer& layer, Stack::Kept& kept, View y, bool save) {
    forward_layer(ctx, layer, all, kept, y, save);
    if (pass.after_block) pass.after_block(layer.mlp.layer, y);
  };
  pass.tokens = blocks_.forward(ctx, outputs, x, norm_block_, pass.blocks, count, run);
  pass.norm_mark = ctx.arena.low();
  View encoded = ctx.arena.save(rows * width, ctx.activation());
  ForwardBlock weights(ctx, norm_block_, next_block);
  pass.norm = norm_.make_saved(ctx, true, rows);
  norm_.forward(ctx, pass.tokens, rows, encoded, pass.norm);
  return encoded;
}

// y: none if only the tensors for backward are computed again.
void Vit::forward_layer(nn::Context& ctx, const Layer& layer, const nn::Sequences& all,
                        Stack::Kept& kept, View y, bool save) const {
  const int64_t length = config_.tokens(), width = config_.width, rows = all.rows.count;
  const bool drop = ctx.train && drops();
  const int number = layer.mlp.layer;
  Layer::Saved& s = kept.saved;
  s.n0 = ctx.make_activation(save, rows * width);
  s.norm0 = layer.norm0.make_saved(ctx, save, rows);
  layer.norm0.forward(ctx, kept.x, rows, s.n0, s.norm0);
  s.attention = layer.attention.make_saved(ctx, save, true, all, all);
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

void Vit::backward_layer(nn::Context& ctx, const Layer& layer, const nn::Sequences& all,
                         Stack::Kept& kept, const nn::StreamGradient& d) const {
  const int64_t length = config_.tokens(), width = config_.width, rows = all.rows.count;
  const bool drop = ctx.train && drops();
  const int number = layer.mlp.layer;
  Layer::Saved& s = kept.saved;
  blocks_.make_again(ctx, layer.mlp, s.n1, rows, s.mlp);
  const nn::StreamGradient dropped = drop ? ctx.arena.temporary(rows * width) : d;
  if (drop)
    nn::dropout(ctx, dropped.d, d.d, config_.dropout, "encoder/mlp_output", number, length * width);
  {
    device::Arena::Scope scope(ctx.arena);
    View dn = ctx.make_norm_gradient(rows * width);
    layer.mlp.backward(ctx, dropped, s.n1, rows, s.mlp, dn);
    layer.norm1.backward(ctx, dn, s.a, rows, s.norm1, d, Write::accumulate);
  }
  if (drop)
    nn::dropout(ctx, dropped.d, d.d, config_.dropout, "encoder/attention", number, length * width);
  const View dn = layer.attention.make_input_gradient(ctx, rows * width);
  layer.attention.backward(ctx, dropped, s.n0, all, {}, all, kernels::Mask::full, {}, s.attention,
                           dn, {}, Write::overwrite);
  layer.norm0.backward(ctx, dn, kept.x, rows, s.norm0, d, Write::accumulate);
}

void Vit::backward(nn::Context& ctx, View d, Pass& pass) const {
  const nn::Sequences all = sequences(ctx, pass);
  const int64_t width = config_.width, rows = all.rows.count;
  device::Arena::Scope blocks_scope(ctx.arena);
  // Dropout stands between the stream and the layers that read its gradient.
  const nn::StreamGradient stream =
      ctx.train && drops() ? nn::StreamGradient(d) : nn::StreamGradient(ctx, d, width, true);
  backward_block(ctx, norm_block_, blocks_.last_block(), [&] {
    device::Arena::Scope scope(ctx.arena);
    nn::StreamGradient dx = stream;
    dx.d = ctx.arena.temporary(rows * width);
    norm_.backward(ctx, d, pass.tokens, rows, pass.norm, dx, Write::overwrite);
    ctx.run(kernels::Copy{.y = d, .x = dx.d});
  });
  ctx.arena.pop_low(pass.norm_mark);
  blocks_.backward(
      ctx, stem_block_, pass.blocks,
      [&](const Layer& layer, Stack::Kept& kept) {
        forward_layer(ctx, layer, all, kept, {}, false);
      },
      [&](const Layer& layer, Stack::Kept& kept) {
        backward_layer(ctx, layer, all, kept, stream);
      });
  backward_block(ctx, stem_block_, -1, [&] {
    if (pass.sizes.empty())
      backward_stem(ctx, stream, pass);
    else
      backward_views(ctx, d, pass);
  });
  ctx.arena.pop_low(pass.start);
}

void Vit::backward_stem(nn::Context& ctx, const nn::StreamGradient& stream, Pass& pass) const {
  const View d = stream.d;
  const int64_t examples = ctx.batch / ctx.slices, width = config_.width,
                columns = config_.patches() * width;
  if (ctx.train && drops())
    nn::dropout(ctx, d, d, config_.dropout, "encoder/posemb", 0, config_.tokens() * width);
  device::Arena::Scope scope(ctx.arena);
  nn::StreamGradient d_patches = stream;
  auto gather = [&](View y, View index) {
    ctx.run(kernels::GatherRows{.y = y,
                                .x = d,
                                .index = index,
                                .rows = index.count,
                                .width = width,
                                .source_rows = d.count / width});
    return y;
  };
  auto sum_over_examples = [&](int parameter, View x, int64_t n) {
    if (ctx.gradient(parameter).view.none()) return;
    nn::sum_over_slices(ctx, {parameter}, [&](int64_t j, const auto& t) {
      ctx.run(kernels::ColumnSum{.out = t[0].view,
                                 .x = x.slice(j * examples * n, examples * n),
                                 .m = examples,
                                 .n = n,
                                 .write = t[0].write});
    });
  };
  if (class_token_ >= 0) {
    d_patches = gather(ctx.arena.temporary(ctx.batch * columns), pass.token_rows.patches);
    sum_over_examples(class_token_,
                      gather(ctx.arena.temporary(ctx.batch * width), pass.token_rows.classes),
                      width);
  }
  sum_over_examples(positions_, d_patches.d, columns);
  stem_.backward(ctx, d_patches, pass.patches, ctx.batch * config_.patches(), {});
}

int64_t Vit::forward_flops(int64_t patches) const {
  const int64_t p = patches + config_.class_token, e = config_.width, m = config_.mlp;
  return input_flops(patches) +
         config_.depth * (4 * 2 * p * e * e + 2 * 2 * p * p * e + 2 * 2 * p * e * m);
}

}  // namespace models
