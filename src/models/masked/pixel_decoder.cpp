// SPDX-License-Identifier: Apache-2.0
#include "models/masked/pixel_decoder.hpp"

namespace models {
namespace {

nn::Linear declare_product(const std::string& path, int64_t in, int64_t out, ParameterList& list) {
  nn::Linear linear{.in = in, .out = out};
  linear.kernel = list.add_operand(path + "/kernel", {in, out}, ParameterList::xavier(in, out));
  linear.bias = list.add(path + "/bias", {out}, ParameterList::zeros());
  return linear;
}

// Writes these rows of x to y.
void gather(nn::Context& ctx, View x, View index, int64_t width, View y) {
  ctx.run(kernels::GatherRows{.y = y,
                              .x = x,
                              .index = index,
                              .rows = index.count,
                              .width = width,
                              .source_rows = x.count / width});
}

}  // namespace

PixelDecoder::PixelDecoder(const MaeOptions& options, int64_t tokens_width, Recompute recompute,
                           ParameterList& list)
    : width_(options.decoder.width),
      places_(1 + options.patches()),
      kept_(1 + options.kept()),
      masked_(options.masked()),
      layers_({.depth = options.decoder.depth,
               .width = options.decoder.width,
               .mlp = options.decoder.hidden(),
               .heads = options.decoder.heads,
               .gelu = options.vit().size.gelu,
               .norm_epsilon = float(options.vit().size.norm_epsilon),
               .path = "decoder/Transformer"},
              recompute) {
  const EncoderOptions& vit = options.vit().size;
  embed_block_ = list.begin_block("decoder/embed");
  embed_ = declare_product("decoder/embed", tokens_width, width_, list);
  mask_token_ = list.add("decoder/mask_token", {1, 1, width_}, ParameterList::normal(0.02));
  table_.resize(size_t(width_));
  const std::vector<float> patches =
      mae_positions(options.height() / vit.patch, options.width() / vit.patch_columns(), width_);
  table_.insert(table_.end(), patches.begin(), patches.end());
  layers_.declare(list);
  head_block_ = list.begin_block("decoder/pixels");
  head_ = declare_product("decoder/pixels", width_, options.pixels(), list);
}

int64_t PixelDecoder::forward_flops() const {
  return 2 * kept_ * embed_.in * embed_.out + layers_.forward_flops(places_) +
         2 * masked_ * head_.in * head_.out;
}

// Writes the tokens of all places, with their positions.
void PixelDecoder::embed(nn::Context& ctx, const Pass& pass, View x) const {
  device::Arena::Scope scope(ctx.arena);
  const int64_t rows = ctx.batch * kept_, first = rows * width_;
  const View all = ctx.arena.temporary(first + width_);
  embed_.forward(ctx, pass.encoded, rows, all.slice(0, first));
  ctx.run(kernels::Copy{.y = all.slice(first, width_), .x = ctx.weight(mask_token_)});
  gather(ctx, all, pass.tables.sources, width_, x);
  ctx.run(kernels::AddTable{.y = x,
                            .x = x,
                            .table = pass.positions,
                            .rows = ctx.batch * places_,
                            .width = width_,
                            .length = places_});
}

void PixelDecoder::forward(nn::Context& ctx, View encoded, const Tables& tables, View pixels,
                           Pass& pass) const {
  const nn::Sequences all = sequences(ctx);
  const int64_t count = all.rows.count * width_;
  pass.start = ctx.arena.low();
  pass.tables = tables;
  pass.encoded = encoded;
  Outputs outputs(ctx, count);
  const View x = outputs.make(count);
  {
    ForwardBlock weights(ctx, embed_block_, layers_.first_block());
    embed(ctx, pass, x);
  }
  const View tokens =
      layers_.forward(ctx, outputs, x, all, head_block_, pass.layers, [](int, const View&) {});
  // Nobody reads the predictions of kept patches, so they are left out.
  ForwardBlock weights(ctx, head_block_, -1);
  pass.masked = ctx.arena.save(masked_of(ctx) * width_, tokens.type);
  gather(ctx, tokens, tables.masked, width_, pass.masked);
  head_.forward(ctx, pass.masked, masked_of(ctx), pixels);
}

void PixelDecoder::backward(nn::Context& ctx, View d_pixels, View d_encoded, int before,
                            Pass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  const nn::Sequences all = sequences(ctx);
  const View d = ctx.arena.temporary(all.rows.count * width_);
  backward_block(ctx, head_block_, layers_.last_block(), [&] {
    device::Arena::Scope head(ctx.arena);
    const View dx = ctx.arena.temporary(masked_of(ctx) * width_);
    head_.backward(ctx, d_pixels, pass.masked, masked_of(ctx), dx);
    ctx.run(kernels::Fill{.y = d});
    ctx.run(kernels::ScatterRows{.y = d,
                                 .x = dx,
                                 .index = pass.tables.masked,
                                 .rows = masked_of(ctx),
                                 .width = width_,
                                 .target_rows = all.rows.count});
  });
  const nn::StreamGradient stream = layers_.stream(ctx, d);
  layers_.backward(ctx, stream, all, embed_block_, pass.layers);
  backward_block(ctx, embed_block_, before, [&] { backward_embed(ctx, d, d_encoded, pass); });
  ctx.arena.pop_low(pass.start);
}

void PixelDecoder::backward_embed(nn::Context& ctx, View d, View d_encoded,
                                  const Pass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  const int64_t rows = masked_of(ctx) / ctx.slices;  // of a slice
  if (!ctx.gradient(mask_token_).view.none()) {
    device::Arena::Scope token(ctx.arena);
    const View masked = ctx.arena.temporary(masked_of(ctx) * width_);
    gather(ctx, d, pass.tables.masked, width_, masked);
    nn::sum_over_slices(ctx, {mask_token_}, [&](int64_t j, const auto& t) {
      ctx.run(kernels::ColumnSum{.out = t[0].view,
                                 .x = masked.slice(j * rows * width_, rows * width_),
                                 .m = rows,
                                 .n = width_,
                                 .write = t[0].write});
    });
  }
  const View kept = ctx.arena.temporary(ctx.batch * kept_ * width_);
  gather(ctx, d, pass.tables.kept, width_, kept);
  embed_.backward(ctx, kept, pass.encoded, ctx.batch * kept_, d_encoded);
}

}  // namespace models
