// SPDX-License-Identifier: Apache-2.0
#include "nn/batch_norm.hpp"

#include <algorithm>
#include <cmath>

namespace nn {
namespace {

using device::DType;

// The groups of a pass, and the parts whose sums are formed at once. A part is a slice, or a group
// if a slice has several.
struct Cut {
  int64_t groups, parts;
  int64_t ranks;     // that share a group
  int64_t examples;  // of a group
};

// Numbers of examples of a slice and of a rank, and numbers of ranks and of passes.
struct Counts {
  int64_t slice, rank, ranks, ranks_of_replica, passes;

  // True if groups of `examples` examples have whole slices, or slices have whole groups, and a
  // group is in one pass. If a step has several passes, only the examples of a replica's ranks are
  // consecutive in a pass.
  bool fit(int64_t examples) const {
    if (examples <= slice) return slice % examples == 0;
    if (examples <= rank) return examples % slice == 0 && rank % examples == 0;
    const int64_t shared = examples / rank;
    return examples % rank == 0 && (passes == 1 ? ranks : ranks_of_replica) % shared == 0;
  }
};

[[noreturn]] void refuse(const std::string& key, int64_t examples, const Counts& c) {
  if (examples == 0)
    base::fail(base::Exit::config,
               "{} = 0 takes the statistics of batch norm over the whole global batch, which "
               "accumulation splits into {} passes; set it to {}, or train.micro_batch to {}",
               key, c.passes, c.slice, c.rank * c.passes);
  int64_t below = examples, above = examples;
  while (below > 1 && !c.fit(below)) --below;
  while (above < c.rank * c.ranks && !c.fit(above)) ++above;
  const std::string larger = c.fit(above) ? fmt::format(" or {}", above) : "";
  base::fail(
      base::Exit::config,
      "{} = {} does not divide the batch into equal groups of batch norm: each of {} ranks runs {} "
      "passes a step, of {} examples in slices of {}; set it to {}{}",
      key, examples, c.ranks, c.passes, c.rank, c.slice, below, larger);
}

Cut cut_of(const Context& ctx, const BatchNorm& layer) {
  if (!ctx.train) return {1, 1, 1, ctx.batch};
  Counts c{.slice = ctx.batch / ctx.slices,
           .rank = ctx.batch,
           .ranks = ctx.group ? ctx.group->ranks() : 1,
           .ranks_of_replica = ctx.group ? ctx.group->ranks_of_replica() : 1,
           .passes = ctx.passes};
  const int64_t whole = c.rank * c.ranks,
                examples = layer.group_examples ? layer.group_examples : whole;
  if (layer.group_examples == 0 ? c.passes > 1 : examples > whole || !c.fit(examples))
    refuse(layer.group_key, layer.group_examples, c);
  Cut cut{.groups = std::max<int64_t>(1, c.rank / examples),
          .parts = std::max(ctx.slices, c.rank / examples),
          .ranks = std::max<int64_t>(1, examples / c.rank),
          .examples = examples};
  return cut;
}

// Adds the sums f64 [parts, width] of each group. Returns [groups, width], in the first rows.
View add_parts(Context& ctx, View sums, const Cut& cut) {
  const int64_t width = sums.count / cut.parts, parts = cut.parts / cut.groups;
  if (cut.ranks > 1) {
    const bool all = cut.ranks == ctx.group->ranks();
    const View room = all ? View{} : ctx.arena.temporary(ctx.group->ranks() * width, DType::f64);
    return ctx.group->sum_over(cut.ranks, sums, cut.parts, room, ctx.queue);
  }
  for (int64_t g = 0; parts > 1 && g < cut.groups; ++g) {
    const View sum = add_along_tree(sums.slice(g * parts * width, parts * width), parts, ctx.queue);
    if (g > 0) device::copy(sums.slice(g * width, width), sum, ctx.queue);
  }
  return sums.slice(0, cut.groups * width);
}

}  // namespace

BatchNorm::Saved BatchNorm::make_saved(Context& ctx, bool saved) const {
  const int64_t count = cut_of(ctx, *this).groups * width;
  return {ctx.make(saved, count), ctx.make(saved, count)};
}

void BatchNorm::measure(Context& ctx, View x, const ImageSize& size, const Saved& saved,
                        Call call) const {
  kernels::BatchNormStatistics form{
      .mean = saved.mean, .rstd = saved.rstd, .columns = width, .eps = eps};
  if (!ctx.train) {
    form.running_mean = ctx.weight(running_mean);
    form.running_variance = ctx.weight(running_variance);
    return ctx.run(form);
  }
  device::Arena::Scope scope(ctx.arena);
  const Cut cut = cut_of(ctx, *this);
  const bool update = ctx.states && running_mean >= 0;
  form.groups = cut.groups;
  form.count = cut.examples * size.pixels();
  if (form.count < 2)
    base::fail(base::Exit::config,
               "{} = {}: a group has one value per channel, which has no variance; enlarge it",
               group_key, group_examples);
  const View sums = ctx.arena.temporary(cut.parts * 2 * width, DType::f64);
  ctx.run(kernels::BatchNormSums{.sums = sums,
                                 .x = x,
                                 .parts = cut.parts,
                                 .rows = ctx.batch * size.pixels() / cut.parts,
                                 .columns = width});
  form.sums = add_parts(ctx, sums, cut);
  form.parts = std::min(cut.groups, ctx.slices);
  if (update) form.moments = ctx.arena.temporary(form.parts * 2 * width, DType::f64);
  ctx.run(form);
  if (update) update_running(ctx, form.moments, form.parts, cut.groups, cut.ranks, call);
}

// moments: f64 [parts, 2, width], sums over this pass's `groups` groups, each of which is on
// `ranks` ranks.
void BatchNorm::update_running(Context& ctx, View moments, int64_t parts, int64_t groups,
                               int64_t ranks, Call call) const {
  const int64_t all = ctx.group ? ctx.group->ranks() : 1;
  // A group on several ranks is counted by each of them, but one of all ranks needs no exchange.
  const bool exchanges = all > 1 && (ranks < all || groups > 1);
  View sum = add_along_tree(moments, parts, ctx.queue);
  if (exchanges) ctx.group->add_in_replica(sum, ctx.queue);
  sum = ctx.states->sums().add({running_mean, call.number}, sum, ctx.passes, ctx.last);
  if (!ctx.last) return;
  if (exchanges) ctx.group->add_replicas(sum, ctx.queue);
  const int64_t count = groups * (exchanges ? all : 1) * ctx.passes;
  ctx.run(kernels::BatchNormRunning{.mean = ctx.states->next(running_mean),
                                    .variance = ctx.states->next(running_variance),
                                    .batches = batches < 0 ? View{} : ctx.states->next(batches),
                                    .moments = sum,
                                    .columns = width,
                                    .decay = 1 - double(momentum),
                                    .weight = double(momentum) / double(count)});
}

kernels::BatchNormValues BatchNorm::values(const Context& ctx, const Saved& saved) const {
  return norm_values(ctx, scale, bias, saved);
}

void BatchNorm::forward(Context& ctx, View x, const ImageSize& size, const Saved& saved, View y,
                        bool relu, Call call) const {
  measure(ctx, x, size, saved, call);
  kernels::BatchNormForward op = normalised_by(ctx, x, size, values(ctx, saved), width, y);
  op.relu = relu;
  ctx.run(op);
}

void BatchNorm::backward(Context& ctx, std::span<const Passed> all, bool relu) const {
  device::Arena::Scope scope(ctx.arena);
  const Cut cut = cut_of(ctx, *this);
  const int64_t of_part = 2 * width;
  // Constant statistics have no groups, but gradients are still sums over slices.
  const int64_t parts = ctx.train ? cut.parts : ctx.slices, parts_of_slice = parts / ctx.slices;
  const View sums = ctx.arena.temporary(int64_t(all.size()) * parts * of_part, DType::f64);
  auto sums_of = [&](size_t i) {
    return sums.slice(int64_t(i) * parts * of_part, parts * of_part);
  };
  for (size_t i = 0; i < all.size(); ++i) {
    const Passed& p = all[i];
    CHECK(!p.g.none() || (p.add.none() && p.y.none()), "no room for the gradient of the norm");
    ctx.run(kernels::BatchNormBackwardSums{.sums = sums_of(i),
                                           .g = p.g,
                                           .dy = p.dy,
                                           .add = p.add,
                                           .y = p.y,
                                           .x = p.x,
                                           .norm = values(ctx, p.saved),
                                           .parts = parts,
                                           .groups = cut.groups,
                                           .rows = ctx.batch * p.size.pixels() / parts,
                                           .columns = width,
                                           .relu = relu});
  }
  sum_over_slices(ctx, {scale, bias}, [&](int64_t j, const auto& targets) {
    for (size_t i = 0; i < all.size(); ++i)
      ctx.run(kernels::BatchNormGradients{
          .dscale = targets[0].view,
          .dbias = targets[1].view,
          .sums = sums_of(i).slice(j * parts_of_slice * of_part, parts_of_slice * of_part),
          .parts = parts_of_slice,
          .columns = width,
          .scale_write = i ? Write::accumulate : targets[0].write,
          .bias_write = i ? Write::accumulate : targets[1].write});
  });
  for (size_t i = 0; i < all.size(); ++i) {
    const Passed& p = all[i];
    if (p.dx.none()) continue;
    ctx.run(kernels::BatchNormBackward{.dx = p.dx,
                                       .dy = p.g.none() ? p.dy : p.g,
                                       .x = p.x,
                                       .norm = values(ctx, p.saved),
                                       .sums = ctx.train ? add_parts(ctx, sums_of(i), cut) : View{},
                                       .groups = cut.groups,
                                       .rows = ctx.batch * p.size.pixels() / cut.groups,
                                       .columns = width,
                                       .count = cut.examples * p.size.pixels(),
                                       .relu = relu && p.g.none()});
  }
}

kernels::BatchNormValues norm_values(const Context& ctx, int scale, int bias,
                                     const BatchNorm::Saved& saved) {
  return {.mean = saved.mean,
          .rstd = saved.rstd,
          .scale = scale < 0 ? View{} : ctx.weight(scale),
          .bias = bias < 0 ? View{} : ctx.weight(bias)};
}

kernels::BatchNormValues keep_parameters(Context& ctx, kernels::BatchNormValues values) {
  for (View* view : {&values.scale, &values.bias}) {
    if (view->none()) continue;
    const View copy = ctx.arena.save(view->count);
    ctx.run(kernels::Copy{.y = copy, .x = *view});
    *view = copy;
  }
  return values;
}

kernels::BatchNormForward normalised_by(const Context& ctx, View x, const ImageSize& size,
                                        const kernels::BatchNormValues& values, int64_t width,
                                        View y) {
  const int64_t groups = values.mean.count / width;
  return {.y = y,
          .x = x,
          .norm = values,
          .groups = groups,
          .rows = ctx.batch * size.pixels() / groups,
          .columns = width};
}

}  // namespace nn
