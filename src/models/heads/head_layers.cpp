// SPDX-License-Identifier: Apache-2.0
#include "models/heads/head_layers.hpp"

namespace models {

using device::DType;

void HeadNormOptions::bind(config::Table& t) {
  t.key("on", on, "batch norm after the products").on_resume(config::OnResume::never);
  t.key("eps", eps, "added to the variance").above(0).max(1);
  t.key("momentum", momentum,
        "weight of the batch's mean and variance in the update of the running values")
      .min(0)
      .max(1);
  t.key("group_examples", group_examples,
        "consecutive examples of the global batch that share statistics; 0: all of them")
      .min(0)
      .unit("examples");
  group_key = t.path() + ".group_examples";
}

HeadLayers::HeadLayers(const HeadChain& chain, ParameterList& list) {
  int number = 0;  // of the next layer, those without parameters included
  auto next = [&] {
    return chain.numbered ? fmt::format("{}.{}", chain.path, number++) : chain.path;
  };
  for (size_t i = 0; i + 1 < chain.widths.size(); ++i) {
    const bool last = i + 2 == chain.widths.size();
    const int64_t in = chain.widths[i], out = chain.widths[i + 1];
    Layer layer;
    layer.product = {.in = in, .out = out, .rows_are_outputs = true};
    shard::Init init =
        chain.truncated_normal ? ParameterList::normal(0.02) : ParameterList::uniform_fan_in(in);
    init.std *= chain.multiplier;
    init.value *= chain.multiplier;
    const std::string path = next();
    layer.product.kernel = list.add_operand(path + ".weight", {out, in}, init);
    const shard::Init bias = chain.truncated_normal ? ParameterList::zeros() : init;
    if (chain.bias)
      layer.product.bias = last ? list.add(path + ".bias", {out}, bias)
                                : list.add_operand(path + ".bias", {out}, bias);
    if (!last || !chain.bare_last) {
      if (chain.norm.on) {
        layer.norm = list.batch_norm(next(), out);
        layer.norm.eps = float(chain.norm.eps);
        layer.norm.momentum = float(chain.norm.momentum);
        layer.norm.group_examples = chain.norm.group_examples;
        layer.norm.group_key = chain.norm.group_key;
      }
      layer.activation = chain.activation;
      if (layer.activation) next();
      layer.dropout = chain.dropout;
      if (chain.dropout > 0) next();
    }
    layers_.push_back(layer);
  }
}

namespace {

nn::ImageSize vectors(const nn::Context& ctx, int64_t rows) {
  return {.per_example = rows / ctx.batch, .height = 1, .width = 1};
}

}  // namespace

void HeadLayers::forward(nn::Context& ctx, View x, int64_t rows, View y, Pass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  pass.resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    Saved& saved = pass[i];
    saved = {.x = x};
    const bool last = i + 1 == layers_.size();
    const int64_t count = rows * layer.product.out;
    const DType type = last ? DType::f32 : ctx.activation();
    const View out = last ? y : ctx.make(ctx.keep, count, type);
    saved.before = layer.bare() ? out : ctx.make(ctx.keep, count, type);
    layer.product.forward(ctx, x, rows, saved.before);
    if (!layer.bare()) finish(ctx, layer, int(i), rows, out, saved);
    x = out;
  }
}

// Computes y from the product's result, saved.before.
void HeadLayers::finish(nn::Context& ctx, const Layer& layer, int number, int64_t rows, View y,
                        Saved& saved) const {
  View x = saved.before;
  if (layer.norm.width > 0) {
    const bool more = layer.activation && !layer.fused();
    saved.norm = layer.norm.make_saved(ctx, ctx.keep);
    saved.normed = more ? ctx.make(ctx.keep, x.count, x.type) : y;
    layer.norm.forward(ctx, x, vectors(ctx, rows), saved.norm, saved.normed, layer.fused());
    x = saved.normed;
  }
  if (layer.activation && !layer.fused())
    ctx.run(kernels::ActivationForward{.y = y, .x = x, .kind = *layer.activation});
  else if (layer.norm.width == 0)
    ctx.run(kernels::Copy{.y = y, .x = x});
  if (ctx.train && layer.dropout > 0)
    nn::dropout(ctx, y, y, layer.dropout, "head", number, rows / ctx.batch * layer.product.out);
}

void HeadLayers::backward(nn::Context& ctx, View d, View dx, Pass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  const int64_t rows = d.count / width();
  for (size_t i = layers_.size(); i-- > 0;) {
    const Layer& layer = layers_[i];
    if (!layer.bare()) start_backward(ctx, layer, int(i), rows, d, pass[i]);
    const View before = i > 0 ? ctx.arena.temporary(rows * layer.product.in, ctx.activation()) : dx;
    layer.product.backward(ctx, d, pass[i].x, rows, before);
    d = before;
  }
}

// Turns d, the gradient of the layer's output, into the gradient of the product's result.
void HeadLayers::start_backward(nn::Context& ctx, const Layer& layer, int number, int64_t rows,
                                View d, const Saved& saved) const {
  if (ctx.train && layer.dropout > 0)
    nn::dropout(ctx, d, d, layer.dropout, "head", number, rows / ctx.batch * layer.product.out);
  const bool normed = layer.norm.width > 0;
  if (layer.activation && !layer.fused())
    ctx.run(kernels::ActivationBackward{
        .dx = d, .dy = d, .x = normed ? saved.normed : saved.before, .kind = *layer.activation});
  if (!normed) return;
  const nn::BatchNorm::Passed passed{
      .x = saved.before, .saved = saved.norm, .size = vectors(ctx, rows), .dy = d, .dx = d};
  layer.norm.backward(ctx, {&passed, 1}, layer.fused());
}

int64_t HeadLayers::forward_flops() const {
  int64_t flops = 0;
  for (const Layer& layer : layers_) flops += 2 * layer.product.in * layer.product.out;
  return flops;
}

}  // namespace models
