// SPDX-License-Identifier: Apache-2.0
// A ViT on images of several sizes in one pass. Their tokens are packed,
// example by example, so a slice of examples is contiguous rows, and the blocks
// run once.
#include <algorithm>
#include <cmath>

#include "base/fused.hpp"
#include "kernels/gemm.hpp"
#include "models/trunks/vit.hpp"

namespace models {
namespace {

// Weights of the four nearest values, with a = -0.75, for a place at `part`
// after the second one.
std::array<double, 4> cubic_weights(double part) {
  constexpr double a = -0.75;
  auto near = [&](double x) { return base::fused(base::fused(a + 2, x, -(a + 3)) * x, x, 1.0); };
  auto far = [&](double x) {
    return base::fused(base::fused(base::fused(a, x, -5 * a), x, 8 * a), x, -4 * a);
  };
  return {far(part + 1), near(part), near(1 - part), far(2 - part)};
}

// Returns the matrix [to, from] that resamples a line. Beyond its ends, a line has the values at
// the ends.
std::vector<double> cubic_line(int64_t from, int64_t to) {
  std::vector<double> out(size_t(from * to));
  for (int64_t i = 0; i < to; ++i) {
    const double at = (double(i) + 0.5) * double(from) / double(to) - 0.5, floor = std::floor(at);
    const std::array<double, 4> weights = cubic_weights(at - floor);
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t j = std::clamp<int64_t>(int64_t(floor) - 1 + k, 0, from - 1);
      out[size_t(i * from + j)] += weights[size_t(k)];
    }
  }
  return out;
}

}  // namespace

std::vector<float> cubic_resampling(int64_t from_height, int64_t from_width, int64_t to_height,
                                    int64_t to_width) {
  const std::vector<double> down = cubic_line(from_height, to_height),
                            across = cubic_line(from_width, to_width);
  std::vector<float> out;
  for (int64_t y = 0; y < to_height; ++y)
    for (int64_t x = 0; x < to_width; ++x)
      for (int64_t v = 0; v < from_height; ++v)
        for (int64_t u = 0; u < from_width; ++u)
          out.push_back(
              float(down[size_t(y * from_height + v)] * across[size_t(x * from_width + u)]));
  return out;
}

void Vit::make_view_tables(int64_t examples, HostTables& host) const {
  std::vector<int64_t> first;  // row of each size's patches among the embedded ones
  int64_t embedded = 0, row = 0;
  const auto patches_of = [](const Tokens::Group& g) { return g.grid.height * g.grid.width; };
  for (const Tokens::Group& g : host.groups) {
    first.push_back(embedded);
    embedded += examples * g.per_example * patches_of(g);
    HostTables::OfSize& size = host.sizes.emplace_back();
    if (fixed_positions())
      size.positions = fixed_table(g.grid.height, g.grid.width);
    else if (resamples(g.grid))
      size.positions = cubic_resampling(config_.grid_height(), config_.grid_width(), g.grid.height,
                                        g.grid.width);
  }
  host.offsets = {0};
  for (const Tokens::Group& g : host.groups)
    for (int64_t v = 0; v < g.per_example; ++v) add_rotation(g.grid, host);
  for (int64_t b = 0; b < examples; ++b)
    for (size_t g = 0; g < host.groups.size(); ++g)
      for (int64_t v = 0; v < host.groups[g].per_example; ++v) {
        for (int64_t f = 0; f < config_.front(); ++f) {
          (f > 0 ? host.registers : host.classes).push_back(int32_t(row++));
          host.sources.push_back(int32_t(embedded + f));
        }
        const int64_t patches = patches_of(host.groups[g]);
        for (int64_t p = 0; p < patches; ++p) {
          host.sizes[g].rows.push_back(int32_t(row++));
          host.sources.push_back(
              int32_t(first[g] + (b * host.groups[g].per_example + v) * patches + p));
        }
        host.offsets.push_back(int32_t(row));
      }
}

void Vit::place_views(nn::Context& ctx, std::span<const ImageGroup> views, VitPass& pass) const {
  const HostTables& host = pass.host;
  pass.longest = 0;
  pass.rows = int64_t(host.sources.size());
  pass.offsets = ctx.table(true, host.offsets);
  pass.token_rows.sources = ctx.table(true, host.sources);
  pass.rotation = config_.rotary ? ctx.table(true, host.rotation) : View{};
  if (config_.class_token) pass.token_rows.classes = ctx.table(true, host.classes);
  if (registers_ >= 0) pass.token_rows.registers = ctx.table(true, host.registers);
  for (size_t g = 0; g < views.size(); ++g) {
    const TokenGrid& grid = host.groups[g].grid;
    Size& size = pass.sizes.emplace_back(
        Size{.views = views[g], .grid_height = grid.height, .grid_width = grid.width});
    pass.longest = std::max(pass.longest, grid.count());
    size.rows = ctx.table(true, host.sizes[g].rows);
    if (fixed_positions())
      size.positions = ctx.table(true, host.sizes[g].positions);
    else if (resamples(grid))
      size.resampling = ctx.table(true, host.sizes[g].positions);
  }
}

// Returns the position table of the size: [patches of the size, width].
View Vit::positions_of(nn::Context& ctx, const Size& size) const {
  if (positions_ < 0) return size.positions;
  if (size.resampling.none()) return ctx.weight(positions_);
  const View table = ctx.arena.temporary(size.count() * config_.width);
  ctx.run(kernels::Gemm{.c = table,
                        .a = size.resampling,
                        .b = ctx.weight(positions_),
                        .m = size.count(),
                        .n = config_.width,
                        .k = config_.patches()});
  return table;
}

// Writes the packed tokens of all images to x.
void Vit::embed_views(nn::Context& ctx, View x, VitPass& pass) const {
  const int64_t width = config_.width, examples = ctx.batch / pass.tokens.views();
  int64_t embedded = 0;
  for (const Size& s : pass.sizes) embedded += examples * s.views.per_example * s.count();
  device::Arena::Scope scope(ctx.arena);
  const View all = ctx.arena.temporary((embedded + config_.front()) * width);
  int64_t at = 0;
  for (Size& s : pass.sizes) {
    const int64_t images = examples * s.views.per_example, rows = images * s.count();
    const View y = all.slice(at * width, rows * width);
    at += rows;
    s.patches = ctx.make_activation(ctx.keep, rows * stem_.row_of_x(ctx));
    ctx.run(kernels::Patchify{.patches = s.patches,
                              .image = s.views.images,
                              .batch = images,
                              .height = s.views.height,
                              .width = s.views.width,
                              .patch = config_.patch_height,
                              .patch_width = config_.patch_width,
                              .range = bytes_,
                              .stride = stem_.row_of_x(ctx)});
    stem_.forward(ctx, s.patches, rows, y);
    if (!config_.rotary)
      ctx.run(kernels::AddTable{.y = y,
                                .x = y,
                                .table = positions_of(ctx, s),
                                .rows = rows,
                                .width = width,
                                .length = s.count()});
  }
  append_front(ctx, all.slice(at * width, config_.front() * width));
  ctx.run(kernels::GatherRows{.y = x,
                              .x = all,
                              .index = pass.token_rows.sources,
                              .rows = pass.rows,
                              .width = width,
                              .source_rows = all.count / width});
}

// Computes the gradients of the stem from the gradient of the packed tokens. Within a slice the
// sizes are added in order.
void Vit::backward_views(nn::Context& ctx, View d, const VitPass& pass) const {
  const int64_t width = config_.width;
  device::Arena::Scope scope(ctx.arena);
  auto gather = [&](View index) {
    const View y = ctx.arena.temporary(index.count * width);
    ctx.run(kernels::GatherRows{.y = y,
                                .x = d,
                                .index = index,
                                .rows = index.count,
                                .width = width,
                                .source_rows = pass.rows});
    return y;
  };
  auto slice = [&](int64_t j, View x) {
    return x.slice(x.count / ctx.slices * j, x.count / ctx.slices);
  };
  backward_front(ctx, d, pass);
  std::vector<View> of_patches;
  for (const Size& s : pass.sizes) of_patches.push_back(gather(s.rows));
  if (positions_ >= 0)
    nn::sum_over_slices(ctx, {positions_}, [&](int64_t j, const auto& t) {
      for (size_t g = 0; g < pass.sizes.size(); ++g) {
        device::Arena::Scope sums(ctx.arena);
        const Size& s = pass.sizes[g];
        const Write write = g ? Write::accumulate : t[0].write;
        const int64_t columns = s.count() * width;
        const View x = slice(j, of_patches[g]);
        const bool usual = s.resampling.none();
        const View sum = usual ? t[0].view : ctx.arena.temporary(columns);
        ctx.run(kernels::ColumnSum{.out = sum,
                                   .x = x,
                                   .m = x.count / columns,
                                   .n = columns,
                                   .write = usual ? write : Write::overwrite});
        if (!usual)
          ctx.run(kernels::Gemm{.c = t[0].view,
                                .a = s.resampling,
                                .b = sum,
                                .m = config_.patches(),
                                .n = width,
                                .k = s.count(),
                                .trans_a = true,
                                .write = write});
      }
    });
  nn::sum_over_slices(ctx, {stem_.kernel, stem_.bias}, [&](int64_t j, const auto& targets) {
    auto all = targets;
    for (size_t g = 0; g < pass.sizes.size(); ++g) {
      device::Arena::Scope operands(ctx.arena);
      const View x = slice(j, pass.sizes[g].patches), dy = slice(j, of_patches[g]);
      stem_.parameter_gradients(ctx, all[0], all[1], ctx.operand(dy), x, dy.count / width);
      for (auto& t : all) t.write = Write::accumulate;
    }
  });
}

}  // namespace models
