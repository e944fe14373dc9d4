// SPDX-License-Identifier: Apache-2.0
#include "models/trunks/vit.hpp"

namespace models {

void VitLayers::declare(ParameterList& list) {
  const Config& config = config_;
  for (int64_t i = 0; i < config.depth; ++i) {
    const std::string path = fmt::format("{}/encoderblock_{}", config.path, i);
    const int block = list.begin_block(path);
    Layer layer;
    layer.norm0 = list.layer_norm(path + "/LayerNorm_0", config.width, true);
    layer.norm1 = list.layer_norm(path + "/LayerNorm_1", config.width, true);
    layer.attention = list.attention(path + "/MultiHeadDotProductAttention_0", config.width,
                                     config.width, config.heads, true, ParameterList::xavier);
    layer.mlp = list.mlp(path + "/MlpBlock_0", config.width, config.mlp, true);
    if (config.swiglu) list.add_gate(path + "/MlpBlock_0", layer.mlp);
    if (scales()) {
      layer.scale0 = list.layer_scale(path + "/LayerScale_0", config.width, config.layer_scale);
      layer.scale1 = list.layer_scale(path + "/LayerScale_1", config.width, config.layer_scale);
    }
    layer.norm0.epsilon = layer.norm1.epsilon = config.norm_epsilon;
    layer.mlp.gelu = config.gelu;
    layer.mlp.dropout_rate = config.dropout;
    layer.mlp.dropout_name = "encoder/mlp";
    layer.mlp.layer = int(i);
    blocks_.add(block, layer);
  }
  list.end_levels();
  norm_block_ = list.begin_block(config.path + "/encoder_norm");
  norm_ = list.layer_norm(config.path + "/encoder_norm", config.width, true);
  norm_.epsilon = config.norm_epsilon;
}

int64_t VitLayers::forward_flops(int64_t tokens) const {
  const int64_t e = config_.width, m = config_.mlp, p = tokens;
  const int64_t products = config_.swiglu ? 3 : 2;  // of the MLP
  return config_.depth * (4 * 2 * p * e * e + 2 * 2 * p * p * e + products * 2 * p * e * m);
}

View VitLayers::normalise(nn::Context& ctx, const nn::Sequences& all, int next_block,
                          Pass& pass) const {
  const int64_t rows = all.rows.count;
  pass.norm_mark = ctx.arena.low();
  View tokens = ctx.arena.save(rows * config_.width, ctx.activation());
  ForwardBlock weights(ctx, norm_block_, next_block);
  pass.norm = norm_.make_saved(ctx, true, rows);
  norm_.forward(ctx, pass.last, rows, tokens, pass.norm);
  return tokens;
}

void VitLayers::drop(nn::Context& ctx, const Joint& joint, View y, View x) const {
  if (drops(ctx))
    nn::dropout(ctx, y, x, config_.dropout, joint.dropout_name, joint.layer,
                joint.length * config_.width);
}

// Makes y the sum of x and the branch, after dropout of the branch, which stays changed. y: none if
// only that is wanted.
void VitLayers::join(nn::Context& ctx, const Joint& joint, View branch, nn::Rows rows, View x,
                     View y) const {
  drop(ctx, joint, branch, branch);
  if (y.none()) return;
  if (scales()) return joint.scale.forward(ctx, branch, rows, x, y);
  if (drops(ctx)) ctx.run(kernels::Add{.y = y, .a = branch, .b = x});
}

// Turns d, the gradient of the sum, into that of the branch before dropout.
void VitLayers::leave(nn::Context& ctx, const Joint& joint, View branch, nn::Rows rows, View d,
                      View d_branch) const {
  if (scales()) joint.scale.backward(ctx, d, branch, rows, d_branch);
  drop(ctx, joint, d_branch, scales() ? d_branch : d);
}

// y: none if only the tensors for backward are computed again.
void VitLayers::forward_layer(nn::Context& ctx, const Layer& layer, const nn::Sequences& all,
                              Stack::Kept& kept, View y, bool save) const {
  const int64_t count = all.rows.count * config_.width;
  const nn::Rows& rows = all.rows;
  const int number = layer.mlp.layer;
  const bool plain = !changes_branches(ctx);
  Layer::Saved& s = kept.saved;
  s.n0 = ctx.make_activation(save, count);
  s.norm0 = layer.norm0.make_saved(ctx, save, rows);
  layer.norm0.forward(ctx, kept.x, rows, s.n0, s.norm0);
  s.attention = layer.attention.make_saved(ctx, save, true, all, all);
  layer.attention.forward_heads(ctx, s.n0, all, s.n0, all, kernels::Mask::full, {}, s.attention);
  s.a = ctx.make(save, count);
  s.branch0 = scales() ? ctx.make(save, count) : s.a;
  layer.attention.forward_output(ctx, s.attention, rows, s.branch0, plain ? kept.x : View{});
  join(ctx, {layer.scale0, "encoder/attention", number, all.length}, s.branch0, rows, kept.x, s.a);
  s.n1 = ctx.make_activation(save, count);
  s.norm1 = layer.norm1.make_saved(ctx, save, rows);
  layer.norm1.forward(ctx, s.a, rows, s.n1, s.norm1);
  s.mlp = blocks_.make_saved(ctx, layer.mlp, save, rows);
  s.branch1 = scales() ? ctx.make(save, count) : y;
  if (s.branch1.none()) return layer.mlp.forward_hidden(ctx, s.n1, rows, s.mlp);
  layer.mlp.forward(ctx, s.n1, rows, s.mlp, s.branch1, plain ? s.a : View{});
  join(ctx, {layer.scale1, "encoder/mlp_output", number, all.length}, s.branch1, rows, s.a, y);
}

void VitLayers::backward_layer(nn::Context& ctx, const Layer& layer, const nn::Sequences& all,
                               Stack::Kept& kept, const nn::StreamGradient& d) const {
  const int64_t count = all.rows.count * config_.width;
  const nn::Rows& rows = all.rows;
  const int number = layer.mlp.layer;
  Layer::Saved& s = kept.saved;
  blocks_.make_again(ctx, layer.mlp, s.n1, rows, s.mlp);
  const nn::StreamGradient branch = changes_branches(ctx) ? ctx.arena.temporary(count) : d;
  leave(ctx, {layer.scale1, "encoder/mlp_output", number, all.length}, s.branch1, rows, d.d,
        branch.d);
  {
    device::Arena::Scope scope(ctx.arena);
    View dn = layer.mlp.make_input_gradient(ctx, count);
    layer.mlp.backward(ctx, branch, s.n1, rows, s.mlp, dn);
    layer.norm1.backward(ctx, dn, s.a, rows, s.norm1, d, Write::accumulate);
  }
  leave(ctx, {layer.scale0, "encoder/attention", number, all.length}, s.branch0, rows, d.d,
        branch.d);
  const View dn = layer.attention.make_input_gradient(ctx, count);
  layer.attention.backward(ctx, branch, s.n0, all, {}, all, kernels::Mask::full, {}, s.attention,
                           dn, {}, Write::overwrite);
  layer.norm0.backward(ctx, dn, kept.x, rows, s.norm0, d, Write::accumulate);
}

void VitLayers::backward(nn::Context& ctx, const nn::StreamGradient& stream,
                         const nn::Sequences& all, int before, Pass& pass) const {
  const int64_t rows = all.rows.count;
  backward_block(ctx, norm_block_, blocks_.last_block(), [&] {
    device::Arena::Scope scope(ctx.arena);
    nn::StreamGradient dx = stream;
    dx.d = ctx.arena.temporary(rows * config_.width);
    norm_.backward(ctx, stream.d, pass.last, rows, pass.norm, dx, Write::overwrite);
    ctx.run(kernels::Copy{.y = stream.d, .x = dx.d});
  });
  ctx.arena.pop_low(pass.norm_mark);
  blocks_.backward(
      ctx, before, pass.blocks,
      [&](const Layer& layer, Stack::Kept& kept) {
        forward_layer(ctx, layer, all, kept, {}, false);
      },
      [&](const Layer& layer, Stack::Kept& kept) {
        backward_layer(ctx, layer, all, kept, stream);
      });
}

}  // namespace models
