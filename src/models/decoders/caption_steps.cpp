// SPDX-License-Identifier: Apache-2.0
#include "models/decoders/caption_steps.hpp"

#include "base/narrow.hpp"
#include "kernels/decode_attention.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/row_product.hpp"

namespace models {

View CaptionSteps::held(nn::Context& ctx, int block, View weight) const {
  if (ctx.weights.readable(block)) return weight;
  const View copy = ctx.arena.save(weight.count, weight.type);
  ctx.run(kernels::Copy{.y = copy, .x = weight});
  return copy;
}

CaptionSteps::Norm CaptionSteps::held(nn::Context& ctx, int block,
                                      const nn::LayerNorm& norm) const {
  return {held(ctx, block, ctx.weight(norm.scale)),
          norm.bias < 0 ? View{} : held(ctx, block, ctx.weight(norm.bias))};
}

CaptionSteps::Product CaptionSteps::held(nn::Context& ctx, int block, const nn::Linear& linear,
                                         bool narrow) const {
  Product out{held(ctx, block, ctx.weight_operand(linear.kernel)), {}, linear.in, linear.out};
  if (linear.bias >= 0)
    out.bias = held(ctx, block, narrow ? ctx.weight_operand(linear.bias) : ctx.weight(linear.bias));
  return out;
}

void CaptionSteps::hold_layer(nn::Context& ctx, int block, const CaptionDecoder::Layer& from,
                              View encoded, int64_t rows, Layer& to) const {
  const int64_t width = decoder_.config().width;
  to.heads = from.self.heads;
  to.norm1 = held(ctx, block, from.norm1);
  to.norm2 = held(ctx, block, from.norm2);
  to.norm3 = held(ctx, block, from.norm3);
  to.query = held(ctx, block, from.self.query, true);
  to.key = held(ctx, block, from.self.key, true);
  to.value = held(ctx, block, from.self.value, true);
  to.output = held(ctx, block, from.self.output, false);
  to.cross_query = held(ctx, block, from.cross.query, true);
  to.cross_output = held(ctx, block, from.cross.output, false);
  to.hidden = held(ctx, block, from.mlp.hidden, true);
  to.mlp_output = held(ctx, block, from.mlp.output, false);
  for (View* view : {&to.cache.k, &to.cache.v})
    *view = ctx.arena.save(length_ * slots_ * width, ctx.activation());
  for (View* view : {&to.cache.image_k, &to.cache.image_v})
    *view = ctx.arena.save(rows * width, ctx.activation());
  for (int64_t j = 0; j < ctx.slices; ++j)
    ctx.run_by_rows({from.cross.key.product(ctx, encoded, rows, j, to.cache.image_k),
                     from.cross.value.product(ctx, encoded, rows, j, to.cache.image_v)});
}

void CaptionSteps::begin(nn::Context& ctx, View encoded, int64_t slots, int64_t length) {
  const DecoderConfig& config = decoder_.config();
  CHECK(length >= 1 && length <= config.length, "{} steps of a text of {}", length, config.length);
  slots_ = slots;
  length_ = length;
  batch_ = ctx.batch;
  const CaptionDecoder::Stack& stack = decoder_.stack();
  layers_.resize(stack.size());
  {
    const int block = decoder_.first_block(), positions = decoder_.position_parameter();
    ForwardBlock weights(ctx, block, stack.first_block());
    table_ = held(ctx, block, ctx.weight(decoder_.token_table()));
    positions_ = positions < 0 ? ctx.table(true, decoder_.fixed_positions())
                               : held(ctx, block, ctx.weight(positions));
  }
  {
    device::Arena::Scope scope(ctx.arena);
    const View memory = ctx.operand(encoded);
    for (size_t i = 0; i < stack.size(); ++i) {
      const int block = stack.block(i),
                next = i + 1 < stack.size() ? stack.block(i + 1) : head_.block_;
      ForwardBlock weights(ctx, block, next);
      hold_layer(ctx, block, stack.layer(i), memory, ctx.batch * config.memory_length, layers_[i]);
    }
  }
  ForwardBlock weights(ctx, head_.block_, -1);
  norm_ = held(ctx, head_.block_, head_.norm_);
  head_product_ = held(ctx, head_.block_, head_.head_, false);
}

View CaptionSteps::normed(nn::Context& ctx, const Norm& norm, View x, int64_t rows) const {
  const int64_t width = decoder_.config().width;
  const View y = ctx.make_activation(false, rows * width);
  ctx.run(kernels::LayerNormForward{.y = y,
                                    .mean = ctx.arena.temporary(rows),
                                    .rstd = ctx.arena.temporary(rows),
                                    .x = x,
                                    .scale = norm.scale,
                                    .bias = norm.bias,
                                    .rows = rows,
                                    .columns = width});
  return y;
}

void CaptionSteps::run(nn::Context& ctx, const Product& product, View x, View y, int64_t rows,
                       View residual) const {
  ctx.run(kernels::RowProduct{.c = y,
                              .a = x,
                              .b = product.kernel,
                              .bias = product.bias,
                              .residual = residual,
                              .m = rows,
                              .n = product.out,
                              .k = product.in});
}

// Computes the layer of x [rows, width] in place.
void CaptionSteps::run_layer(nn::Context& ctx, const Layer& layer, int64_t step, int64_t rows,
                             View x, View past, View first, View cross_queries) const {
  device::Arena::Scope scope(ctx.arena);
  const int64_t width = decoder_.config().width, image_rows = decoder_.config().memory_length;
  const View q = ctx.make_activation(false, rows * width),
             o = ctx.make_activation(false, rows * width);
  kernels::DecodeAttention attention{.o = o,
                                     .q = q,
                                     .k = layer.cache.k,
                                     .v = layer.cache.v,
                                     .index = past,
                                     .rows = rows,
                                     .heads = layer.heads,
                                     .head_dim = width / layer.heads,
                                     .keys = step + 1,
                                     .cache_rows = length_ * slots_};

  const View n1 = normed(ctx, layer.norm1, x, rows);
  auto of_step = [&](View cache) { return cache.slice(step * slots_ * width, rows * width); };
  run(ctx, layer.query, n1, q, rows);
  run(ctx, layer.key, n1, of_step(layer.cache.k), rows);
  run(ctx, layer.value, n1, of_step(layer.cache.v), rows);
  ctx.run(attention);
  run(ctx, layer.output, o, x, rows, x);

  const View n2 = normed(ctx, layer.norm2, x, rows);
  run(ctx, layer.cross_query, n2, q, rows);
  if (!cross_queries.none()) ctx.run(kernels::Copy{.y = cross_queries, .x = q});
  attention.k = layer.cache.image_k;
  attention.v = layer.cache.image_v;
  attention.index = {};
  attention.first = first;
  attention.keys = image_rows;
  attention.cache_rows = batch_ * image_rows;
  ctx.run(attention);
  run(ctx, layer.cross_output, o, x, rows, x);

  const View n3 = normed(ctx, layer.norm3, x, rows),
             before = ctx.make_activation(false, rows * layer.hidden.out),
             after = ctx.make_activation(false, rows * layer.hidden.out);
  run(ctx, layer.hidden, n3, before, rows);
  ctx.run(kernels::GeluForward{.y = after, .x = before});
  run(ctx, layer.mlp_output, after, x, rows, x);
}

void CaptionSteps::step(nn::Context& ctx, int64_t step, const Rows& rows, View logits,
                        View cross_queries) {
  device::Arena::Scope scope(ctx.arena);
  const DecoderConfig& config = decoder_.config();
  const int64_t count = int64_t(rows.ids.size());
  CHECK(step < length_ && count <= slots_, "step {} of {} with {} rows of {}", step, length_, count,
        slots_);
  first_.clear();
  for (int32_t image : rows.images)
    first_.push_back(base::narrow<int32_t>(image * config.memory_length));
  const View ids = ctx.table(false, rows.ids), past = ctx.table(false, rows.past),
             first = ctx.table(false, first_), x = ctx.arena.temporary(count * config.width);
  ctx.run(
      kernels::EmbeddingForward{.y = x,
                                .ids = ids,
                                .table = table_,
                                .positions = positions_.slice(step * config.width, config.width),
                                .rows = count,
                                .width = config.width,
                                .vocabulary = config.embedding_rows,
                                .length = 1});
  for (const Layer& layer : layers_)
    run_layer(ctx, layer, step, count, x, past, first,
              &layer == &layers_.back() ? cross_queries : View{});
  run(ctx, head_product_, normed(ctx, norm_, x, count), logits, count);
}

}  // namespace models
