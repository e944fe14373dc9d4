// SPDX-License-Identifier: Apache-2.0
#include "models/trunks/vit.hpp"

#include <algorithm>
#include <cmath>

#include "base/elementary.hpp"
#include "kernels/gemm.hpp"
#include "kernels/patchify.hpp"
#include "kernels/token_mean.hpp"

namespace models {
namespace {

constexpr const char* kTokensTap = "encoded";

std::string block_tap(int64_t block) { return fmt::format("block{:02}", block); }
std::string mean_tap(int64_t block) { return block_tap(block) + "_mean"; }

// Returns these rows of x, as a temporary.
View rows_of(nn::Context& ctx, View x, View index, int64_t width) {
  const View y = ctx.arena.temporary(index.count * width);
  ctx.run(kernels::GatherRows{.y = y,
                              .x = x,
                              .index = index,
                              .rows = index.count,
                              .width = width,
                              .source_rows = x.count / width});
  return y;
}

// Computes the gradient of a parameter from that of its `columns` values in each image.
void sum_over_images(nn::Context& ctx, int parameter, View x, int64_t columns) {
  if (ctx.gradient(parameter).view.none()) return;
  const int64_t images = ctx.batch / ctx.slices;
  nn::sum_over_slices(ctx, {parameter}, [&](int64_t j, const auto& t) {
    ctx.run(kernels::ColumnSum{.out = t[0].view,
                               .x = x.slice(j * images * columns, images * columns),
                               .m = images,
                               .n = columns,
                               .write = t[0].write});
  });
}

// Returns sines and cosines of x, then of y, with the frequencies 10000^(-k / steps):
// [height * width, columns].
std::vector<float> waves(int64_t height, int64_t width, int64_t columns, int64_t steps) {
  std::vector<float> out(size_t(height * width * columns));
  const int64_t q = columns / 4;
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t k = 0; k < q; ++k) {
        const double omega = base::math::pow(10000.0, -double(k) / double(steps));
        float* row = out.data() + (y * width + x) * columns;
        row[k] = float(base::math::sin(double(x) * omega));
        row[q + k] = float(base::math::cos(double(x) * omega));
        row[2 * q + k] = float(base::math::sin(double(y) * omega));
        row[3 * q + k] = float(base::math::cos(double(y) * omega));
      }
  return out;
}

}  // namespace

std::vector<float> sincos2d(int64_t height, int64_t width, int64_t columns) {
  // The published formula has 0/0 = NaN for a single frequency; it is 1 here.
  return waves(height, width, columns, std::max<int64_t>(columns / 4 - 1, 1));
}

std::vector<float> mae_positions(int64_t height, int64_t width, int64_t columns) {
  return waves(height, width, columns, columns / 4);
}

std::vector<float> rotary2d(int64_t height, int64_t width, int64_t head_dim) {
  constexpr double kLongestPeriod = 100, kTurn = 6.283185307179586;
  const int64_t half = head_dim / 2, q = head_dim / 4;
  std::vector<float> out(size_t(height * width * head_dim));
  const auto middle = [](int64_t i, int64_t n) { return (2 * double(i) + 1) / double(n) - 1; };
  for (int64_t p = 0; p < height * width; ++p)
    for (int64_t k = 0; k < half; ++k) {
      const double period = base::math::pow(kLongestPeriod, double(k % q) / double(q)),
                   place = k < q ? middle(p / width, height) : middle(p % width, width);
      out[size_t(p * head_dim + k)] = float(base::math::cos(kTurn * place / period));
      out[size_t(p * head_dim + half + k)] = float(base::math::sin(kTurn * place / period));
    }
  return out;
}

Vit::Vit(const VitConfig& config, Recompute recompute, ParameterList& list)
    : config_(config),
      layers_({.depth = config.depth,
               .width = config.width,
               .mlp = config.mlp,
               .heads = config.heads,
               .dropout = config.dropout,
               .gelu = config.gelu,
               .swiglu = config.swiglu,
               .norm_epsilon = config.norm_epsilon,
               .layer_scale = config.layer_scale,
               .path = "encoder/Transformer"},
              recompute) {
  const int64_t width = config.width;
  list.begin_levels();
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
  else if (!config.rotary)
    table_ = fixed_table(config.grid_height(), config.grid_width());
  if (config.class_token)
    class_token_ = list.add("encoder/cls", {1, 1, width}, ParameterList::zeros());
  if (config.registers > 0)  // equal ones would stay equal
    registers_ =
        list.add("encoder/registers", {1, config.registers, width}, ParameterList::normal(1e-6));
  if (config.pre_norm) {
    pre_norm_ = list.layer_norm("encoder/pre_norm", width, true);
    pre_norm_.epsilon = config.norm_epsilon;
  }
  layers_.declare(list);
}

std::vector<float> Vit::fixed_table(int64_t height, int64_t width) const {
  return (config_.mae_table ? mae_positions : sincos2d)(height, width, config_.width);
}

TrunkWeights Vit::weights() const {
  TrunkWeights out = vit_weights(config_);
  out.vit->fixed_positions = table_;
  return out;
}

// ---------------------------------------------------------------- sizes

std::vector<Tap> Vit::taps(int64_t, int64_t) const {
  const std::vector<int64_t> vector = {config_.width}, tokens = {config_.tokens(), config_.width};
  std::vector<Tap> taps = {{pooled_taps().back(), vector, "the pooled vector, which a head reads"},
                           {kTokensTap, tokens, "the normalised tokens"}};
  for (int64_t i = 0; i < config_.depth; ++i) {
    taps.push_back({block_tap(i), tokens, fmt::format("the output of block {}", i)});
    taps.push_back({mean_tap(i), vector, fmt::format("the mean over tokens of {}", block_tap(i))});
  }
  return taps;
}

int64_t Vit::input_flops(std::span<const ImageGroup> groups) const {
  int64_t flops = 0;
  for (const ImageGroup& g : groups) flops += g.per_example * flops_of_patches(patches_of(g));
  return flops;
}

int64_t Vit::forward_flops(std::span<const ImageGroup> groups) const {
  int64_t flops = input_flops(groups);
  for (const ImageGroup& g : groups)
    flops += g.per_example * layers_.forward_flops(grid(g.height, g.width).count());
  return flops;
}

// ---------------------------------------------------------------- passes

void Vit::place(nn::Context& ctx, std::span<const ImageGroup> groups, Pass& pass) const {
  auto& p = dynamic_cast<VitPass&>(pass);
  size_tokens(groups, p);
  nn::Context images = of_images(ctx, p.tokens.views());
  const bool one_size = groups.size() == 1;
  if (!one_size && (!config_.class_token || drops()))
    base::fail(base::Exit::config,
               "views of {} sizes need model.trunk.pool = \"tok\" and no dropout in a ViT; or give "
               "all views one size, or use model.trunk.kind = \"resnet\"",
               groups.size());
  const auto alike = [](const Tokens::Group& a, const Tokens::Group& b) {
    return a.per_example == b.per_example && a.grid.height == b.grid.height &&
           a.grid.width == b.grid.width;
  };
  if (p.host.images != images.batch || !std::ranges::equal(p.host.groups, p.tokens.groups, alike)) {
    p.host = {.images = images.batch, .groups = p.tokens.groups};
    one_size ? make_tables(p.host) : make_view_tables(ctx.batch, p.host);
  }
  p.sizes.clear();
  p.kept = 0;
  one_size ? place_size(images, p) : place_views(images, groups, p);
  p.tokens.class_rows = p.token_rows.classes;
}

void Vit::place_some(nn::Context& ctx, const ImageGroup& images, const KeptPatches& kept,
                     Pass& pass) const {
  CHECK(config_.class_token && config_.registers == 0 && !config_.rotary && !drops());
  auto& p = dynamic_cast<VitPass&>(pass);
  size_tokens({&images, 1}, p);
  p.sizes.clear();
  if (p.kept != kept.count || p.host.images != ctx.batch) {
    p.host = {.images = ctx.batch};
    for (int64_t b = 0; b < ctx.batch; ++b) p.host.classes.push_back(int32_t(b * (1 + kept.count)));
  }
  p.kept = kept.count;
  if (fixed_positions()) p.positions = ctx.table(true, table_);
  p.token_rows = {.sources = kept.sources,
                  .patches = kept.patches,
                  .classes = ctx.table(true, p.host.classes),
                  .registers = {}};
}

const Tokens& Vit::forward(nn::Context& ctx, std::span<const ImageGroup> groups, int next_block,
                           Pass& pass) const {
  auto& p = dynamic_cast<VitPass&>(pass);
  CHECK(!p.read_tap || groups.size() == 1, "taps of images of several sizes");
  nn::Context images = of_images(ctx, p.tokens.views());
  for (size_t g = 0; g < p.sizes.size(); ++g) p.sizes[g].views.images = groups[g].images;
  const View tokens = encode(images, groups.front().images, next_block, p);
  (p.sizes.empty() ? p.tokens.groups.front().values : p.tokens.packed) = tokens;
  read(images, p, kTokensTap, tokens);
  return p.tokens;
}

const Tokens& Vit::make_gradient(nn::Context& ctx, Pass& pass) const {
  Tokens& d = pass.gradient;
  d = pass.tokens;
  View& values = d.packed.none() ? d.groups.front().values : d.packed;
  values = ctx.arena.temporary(values.count);
  return d;
}

void Vit::backward(nn::Context& ctx, Pass& pass) const {
  nn::Context images = of_images(ctx, pass.tokens.views());
  const Tokens& d = pass.gradient;
  backward_stream(images, d.packed.none() ? d.of_one_size() : d.packed,
                  dynamic_cast<VitPass&>(pass));
}

// Passes a tap's values to the reader, if it wants them: a mean over tokens if `tap` is one.
void Vit::read(nn::Context& ctx, const VitPass& pass, const std::string& tap, View values) const {
  if (!pass.wants(tap)) return;
  device::Arena::Scope scope(ctx.arena);
  if (tap.ends_with("_mean")) {
    const View mean = ctx.arena.temporary(ctx.batch * config_.width);
    ctx.run(kernels::TokenMeanForward{.y = mean,
                                      .x = values,
                                      .batch = ctx.batch,
                                      .rows = config_.tokens(),
                                      .width = config_.width});
    values = mean;
  }
  pass.read_tap({.tap = tap,
                 .group = 0,
                 .images = ctx.batch,
                 .grid_height = 1,
                 .grid_width = values.count / (ctx.batch * config_.width),
                 .channels = config_.width,
                 .values = values});
}

// Adds the angles of the tokens of an image. A token without a place is not turned.
void Vit::add_rotation(const TokenGrid& grid, HostTables& host) const {
  if (!config_.rotary) return;
  const int64_t head_dim = config_.width / config_.heads;
  for (int64_t f = 0; f < config_.front(); ++f)
    for (int64_t k = 0; k < head_dim; ++k) host.rotation.push_back(k < head_dim / 2 ? 1.0f : 0.0f);
  const std::vector<float> places = rotary2d(grid.height, grid.width, head_dim);
  host.rotation.insert(host.rotation.end(), places.begin(), places.end());
}

// Makes the tables of images of one size.
void Vit::make_tables(HostTables& host) const {
  add_rotation(host.groups.front().grid, host);
  if (class_token_ < 0) return;
  const int64_t patches = config_.patches(), length = config_.tokens(), front = config_.front();
  for (int64_t b = 0; b < host.images; ++b) {
    host.classes.push_back(int32_t(b * length));
    for (int64_t f = 0; f < front; ++f) {
      if (f > 0) host.registers.push_back(int32_t(b * length + f));
      host.sources.push_back(int32_t(host.images * patches + f));
    }
    for (int64_t p = 0; p < patches; ++p) {
      host.patches.push_back(int32_t(b * length + front + p));
      host.sources.push_back(int32_t(b * patches + p));
    }
  }
}

// Places images of one size.
void Vit::place_size(nn::Context& ctx, VitPass& pass) const {
  if (fixed_positions()) pass.positions = ctx.table(true, table_);
  pass.rotation = config_.rotary ? ctx.table(true, pass.host.rotation) : View{};
  if (class_token_ < 0) return;
  pass.token_rows.sources = ctx.table(true, pass.host.sources);
  pass.token_rows.patches = ctx.table(true, pass.host.patches);
  pass.token_rows.classes = ctx.table(true, pass.host.classes);
  if (registers_ >= 0) pass.token_rows.registers = ctx.table(true, pass.host.registers);
}

// Writes the tokens of images of one size to x [batch * tokens, width].
void Vit::embed(nn::Context& ctx, View images, View x, VitPass& pass) const {
  const int64_t patches = config_.patches(), width = config_.width, rows = ctx.batch * patches;
  device::Arena::Scope scope(ctx.arena);
  pass.patches = ctx.make_activation(ctx.keep, rows * stem_.row_of_x(ctx));
  ctx.run(kernels::Patchify{.patches = pass.patches,
                            .image = images,
                            .batch = ctx.batch,
                            .height = config_.image_height,
                            .width = config_.image_width,
                            .patch = config_.patch_height,
                            .patch_width = config_.patch_width,
                            .range = bytes_,
                            .stride = stem_.row_of_x(ctx)});
  const View all = class_token_ < 0 ? x : ctx.arena.temporary((rows + config_.front()) * width),
             embedded = all.slice(0, rows * width);
  stem_.forward(ctx, pass.patches, rows, embedded);
  if (!config_.rotary)
    ctx.run(kernels::AddTable{.y = embedded,
                              .x = embedded,
                              .table = positions_ < 0 ? pass.positions : ctx.weight(positions_),
                              .rows = rows,
                              .width = width,
                              .length = patches});
  if (class_token_ >= 0) {
    append_front(ctx, all.slice(rows * width, config_.front() * width));
    ctx.run(kernels::GatherRows{.y = x,
                                .x = all,
                                .index = pass.token_rows.sources,
                                .rows = pass.token_rows.sources.count,
                                .width = width,
                                .source_rows = rows + config_.front()});
  }
  if (ctx.train && drops())
    nn::dropout(ctx, x, x, config_.dropout, "encoder/posemb", 0, config_.tokens() * width);
}

// Writes the class token and the registers behind the embedded patches.
void Vit::append_front(nn::Context& ctx, View to) const {
  const int64_t width = config_.width;
  ctx.run(kernels::Copy{.y = to.slice(0, width), .x = ctx.weight(class_token_)});
  if (registers_ >= 0)
    ctx.run(kernels::Copy{.y = to.slice(width, config_.registers * width),
                          .x = ctx.weight(registers_)});
}

// Returns the normalised tokens. images: none with several sizes.
View Vit::encode(nn::Context& ctx, View images, int next_block, VitPass& pass) const {
  const nn::Sequences all = sequences(ctx, pass);
  const int64_t width = config_.width, rows = all.rows.count;
  pass.start = ctx.arena.low();
  Outputs outputs(ctx, rows * width);
  View x = outputs.make(rows * width);
  {
    ForwardBlock weights(ctx, stem_block_, layers_.first_block());
    if (pass.sizes.empty())
      embed(ctx, images, x, pass);
    else
      embed_views(ctx, x, pass);
    if (config_.pre_norm) {
      pass.embedded = x;
      pass.pre_norm = pre_norm_.make_saved(ctx, true, rows);
      x = outputs.make(rows * width);
      pre_norm_.forward(ctx, pass.embedded, rows, x, pass.pre_norm);
    }
  }
  return layers_.forward(ctx, outputs, x, all, next_block, pass.layers, [&](int layer, View y) {
    if (!pass.read_tap) return;
    read(ctx, pass, block_tap(layer), y);
    read(ctx, pass, mean_tap(layer), y);
  });
}

// d: gradient of the normalised tokens, used as workspace.
void Vit::backward_stream(nn::Context& ctx, View d, VitPass& pass) const {
  device::Arena::Scope blocks_scope(ctx.arena);
  const nn::StreamGradient stream = layers_.stream(ctx, d);
  layers_.backward(ctx, stream, sequences(ctx, pass), stem_block_, pass.layers);
  backward_block(ctx, stem_block_, -1, [&] {
    if (config_.pre_norm) backward_pre_norm(ctx, stream, pass);
    if (pass.sizes.empty())
      backward_stem(ctx, stream, pass);
    else
      backward_views(ctx, d, pass);
  });
  ctx.arena.pop_low(pass.start);
}

// Turns the gradient of the normalised tokens into that of the embedded ones.
void Vit::backward_pre_norm(nn::Context& ctx, const nn::StreamGradient& stream,
                            const VitPass& pass) const {
  device::Arena::Scope scope(ctx.arena);
  nn::StreamGradient dx = stream;
  dx.d = ctx.arena.temporary(stream.d.count);
  pre_norm_.backward(ctx, stream.d, pass.embedded, stream.d.count / config_.width, pass.pre_norm,
                     dx, Write::overwrite);
  ctx.run(kernels::Copy{.y = stream.d, .x = dx.d});
}

void Vit::backward_stem(nn::Context& ctx, const nn::StreamGradient& stream, VitPass& pass) const {
  const View d = stream.d;
  const int64_t width = config_.width, columns = config_.patches() * width;
  if (ctx.train && drops())
    nn::dropout(ctx, d, d, config_.dropout, "encoder/posemb", 0, config_.tokens() * width);
  device::Arena::Scope scope(ctx.arena);
  nn::StreamGradient d_patches = stream;
  if (class_token_ >= 0) {
    d_patches = rows_of(ctx, d, pass.token_rows.patches, width);
    backward_front(ctx, d, pass);
  }
  sum_over_images(ctx, positions_, d_patches.d, columns);
  stem_.backward(ctx, d_patches, pass.patches, ctx.batch * config_.patches(), {});
}

// Computes the gradients of the class token and the registers from d, that of all tokens.
void Vit::backward_front(nn::Context& ctx, View d, const VitPass& pass) const {
  const int64_t width = config_.width;
  sum_over_images(ctx, class_token_, rows_of(ctx, d, pass.token_rows.classes, width), width);
  if (registers_ >= 0)
    sum_over_images(ctx, registers_, rows_of(ctx, d, pass.token_rows.registers, width),
                    config_.registers * width);
}

}  // namespace models
