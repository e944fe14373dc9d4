// SPDX-License-Identifier: Apache-2.0
#include "models/trunks/convolutional/convnext.hpp"

#include "kernels/activation.hpp"
#include "kernels/layer_scale.hpp"

namespace models {
namespace {

// Published weights are drawn from N(0, 0.02^2), cut at +-2, which is 100 deviations away.
constexpr double kDeviation = 0.02;

// path: below "trunk/"
nn::Convolution add_convolution(ParameterList& list, const std::string& path,
                                nn::Convolution shape) {
  shape.weight = list.add_operand("trunk/" + path + ".weight",
                                  {shape.out, shape.in / shape.groups, shape.kernel, shape.kernel},
                                  ParameterList::normal(kDeviation));
  shape.bias = list.add("trunk/" + path + ".bias", {shape.out}, ParameterList::zeros());
  return shape;
}

nn::Linear add_linear(ParameterList& list, const std::string& path, int64_t in, int64_t out) {
  nn::Linear l{.in = in, .out = out, .rows_are_outputs = true};
  l.kernel =
      list.add_operand("trunk/" + path + ".weight", {out, in}, ParameterList::normal(kDeviation));
  l.bias = list.add_operand("trunk/" + path + ".bias", {out}, ParameterList::zeros());
  return l;
}

ConvnextLayer make_block(ParameterList& list, const std::string& path, int64_t width,
                         double layer_scale) {
  ConvnextLayer block;
  block.convolution =
      add_convolution(list, path + ".block.0",
                      {.in = width, .out = width, .kernel = 7, .padding = 3, .groups = width});
  block.norm = list.torch_layer_norm("trunk/" + path + ".block.2", width);
  block.hidden = add_linear(list, path + ".block.3", width, 4 * width);
  block.output = add_linear(list, path + ".block.5", 4 * width, width);
  block.layer_scale = list.add("trunk/" + path + ".layer_scale", {width, 1, 1},
                               ParameterList::constant(layer_scale));
  return block;
}

}  // namespace

// ---------------------------------------------------------------- construction

ConvnextTrunk::ConvnextTrunk(const ConvnextConfig& config, Recompute recompute, ParameterList& list)
    : ConvTrunk(recompute) {
  list.begin_levels();
  const int stem_block = list.begin_block("trunk/features.0");
  ConvnextStem stem;
  stem.convolution = add_convolution(list, "features.0.0",
                                     {.in = 3, .out = config.widths[0], .kernel = 4, .stride = 4});
  stem.norm = list.torch_layer_norm("trunk/features.0.1", config.widths[0]);
  set_stem(stem_block, stem, {"stem", "the stem after its norm"});
  int64_t blocks = 0, number = 0;
  for (const int64_t depth : config.depths) blocks += depth;
  for (size_t stage = 0; stage < config.depths.size(); ++stage) {
    const int64_t width = config.widths[stage];
    if (stage > 0) {
      const std::string path = fmt::format("features.{}", 2 * stage);
      const int block = list.begin_block("trunk/" + path);
      ConvnextLayer down;
      down.downsamples = true;
      down.norm = list.torch_layer_norm("trunk/" + path + ".0", config.widths[stage - 1]);
      down.convolution =
          add_convolution(list, path + ".1",
                          {.in = config.widths[stage - 1], .out = width, .kernel = 2, .stride = 2});
      add(block, int(stage), down, true);
    }
    for (int64_t i = 0; i < config.depths[stage]; ++i, ++number) {
      const std::string path = fmt::format("features.{}.{}", 2 * stage + 1, i);
      const int block = list.begin_block("trunk/" + path);
      ConvnextLayer layer = make_block(list, path, width, config.layer_scale);
      layer.drop_path =
          float(config.drop_path * double(number) / double(std::max<int64_t>(blocks - 1, 1)));
      layer.number = int(number);
      layer.recompute = recompute;
      add(block, int(stage), layer);
    }
    end_stage(
        {fmt::format("stage{}", stage + 1), fmt::format("the output of stage {}", stage + 1)});
  }
  list.end_levels();
}

std::vector<Tap> ConvnextTrunk::taps(int64_t height, int64_t width) const {
  std::vector<Tap> out = ConvTrunk::taps(height, width);
  out.push_back({pooled_taps().back(),
                 {this->width()},
                 "the mean of the last stage over all positions, normalised, which heads read"});
  return out;
}

// ---------------------------------------------------------------- forward

void ConvnextStem::run(nn::Context& ctx, Kept& kept, bool save, View y) const {
  Saved& s = kept.saved;
  const nn::Rows rows = positions_of(ctx, kept.out);
  s.c = ctx.make(save, rows.count * channels());
  convolution.forward(ctx, kept.x, kept.size, s.c);
  s.norm = norm.make_saved(ctx, save, rows);
  // The norm computes its statistics only together with its output.
  norm.forward(ctx, s.c, rows, y.none() ? ctx.arena.temporary(s.c.count) : y, s.norm);
}

void ConvnextStem::forward(nn::Context& ctx, Kept& kept, bool save, nn::BatchNormCall,
                           const MapReader&) const {
  run(ctx, kept, save, kept.y);
}

void ConvnextLayer::place(nn::Context& ctx, int64_t group, Kept& kept) const {
  kept.saved.factor = {};
  // A teacher has no stream of draws, and drops no branch.
  if (!ctx.train || drop_path == 0 || ctx.dropout.key() == base::Stream().key()) return;
  const base::Stream draws = ctx.dropout.sub(base::stream_id("trunk/drop_path"))
                                 .sub(uint64_t(number))
                                 .sub(uint64_t(group));
  std::vector<float> factors;
  const int64_t views = kept.size.per_example;
  for (int64_t i = 0; i < ctx.batch * views; ++i) {
    const bool drops = draws.uniform(uint64_t(ctx.first_example * views + i)) < drop_path;
    factors.push_back(drops ? 0 : 1 / (1 - drop_path));
  }
  kept.saved.factor = ctx.table(true, factors);
}

void ConvnextLayer::make_output_saved(nn::Context& ctx, Kept& kept) const {
  kept.saved.scale = ctx.arena.save(channels());
  ctx.run(kernels::Copy{.y = kept.saved.scale, .x = ctx.weight(layer_scale)});
}

void ConvnextLayer::make_hidden(nn::Context& ctx, Kept& kept, bool save) const {
  Saved& s = kept.saved;
  const nn::Rows rows = positions_of(ctx, kept.out);
  s.before = ctx.make_activation(save && recompute < Recompute::mlp, rows.count * hidden.out);
  s.after = ctx.make_activation(save && recompute == Recompute::none, rows.count * hidden.out);
  hidden.forward(ctx, s.n, rows, s.before);
  ctx.run(kernels::ActivationForward{
      .y = s.after, .x = s.before, .kind = kernels::Activation::gelu_erf});
}

// Computes again the part of the hidden layer that was not kept.
void ConvnextLayer::make_hidden_again(nn::Context& ctx, Kept& kept) const {
  Saved& s = kept.saved;
  if (recompute == Recompute::mlp) make_hidden(ctx, kept, false);
  if (recompute != Recompute::gelu) return;
  s.after = ctx.make_activation(false, s.before.count);
  ctx.run(kernels::ActivationForward{
      .y = s.after, .x = s.before, .kind = kernels::Activation::gelu_erf});
}

void ConvnextLayer::scale_branch(nn::Context& ctx, const Kept& kept, View scale) const {
  ctx.run(kernels::LayerScaleForward{.y = kept.y,
                                     .residual = kept.x,
                                     .x = kept.saved.branch,
                                     .scale = scale,
                                     .factor = kept.saved.factor,
                                     .images = ctx.batch * kept.out.per_example,
                                     .rows = kept.out.height * kept.out.width,
                                     .columns = channels()});
}

void ConvnextLayer::run(nn::Context& ctx, Kept& kept, bool save, bool with_output) const {
  Saved& s = kept.saved;
  const nn::Rows rows = positions_of(ctx, downsamples ? kept.size : kept.out);
  const int64_t width = norm.width;
  s.n = ctx.make_activation(save, rows.count * width);
  s.norm = norm.make_saved(ctx, save, rows);
  if (downsamples) {
    norm.forward(ctx, kept.x, rows, s.n, s.norm);
    if (with_output) convolution.forward(ctx, s.n, kept.size, kept.y);
    return;
  }
  s.c = ctx.make(save, rows.count * width);
  s.branch = ctx.make_activation(save, rows.count * width);
  convolution.forward(ctx, kept.x, kept.size, s.c);
  norm.forward(ctx, s.c, rows, s.n, s.norm);
  make_hidden(ctx, kept, save);
  output.forward(ctx, s.after, rows, s.branch);
  if (with_output) scale_branch(ctx, kept, ctx.weight(layer_scale));
}

void ConvnextLayer::forward(nn::Context& ctx, Kept& kept, bool save, nn::BatchNormCall,
                            const MapReader&) const {
  device::Arena::Scope scope(ctx.arena);
  run(ctx, kept, save, true);
}

void ConvnextLayer::output_again(nn::Context& ctx, Kept& kept) const {
  scale_branch(ctx, kept, kept.saved.scale);
}

}  // namespace models
