// SPDX-License-Identifier: Apache-2.0
#include "models/decoders/caption_head.hpp"

#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/gemm.hpp"
#include "kernels/softmax_xent.hpp"
#include "models/block_scope.hpp"

namespace models {

CaptionHead::CaptionHead(const HeadConfig& config, ParameterList& list) : config_(config) {
  block_ = list.begin_block("decoder/head");
  norm_ = list.layer_norm("decoder/LayerNorm", config_.width, true);
  head_ = {.in = config_.width, .out = config.vocabulary};
  head_.kernel = list.add_operand("decoder/LogitsDense/kernel", {config_.width, config.vocabulary},
                                  ParameterList::zeros());
  head_.bias = list.add("decoder/LogitsDense/bias", {config.vocabulary}, ParameterList::zeros());
}

int64_t CaptionHead::chunk_rows(nn::Context& ctx) const {
  // The number depends on the slice, not on the micro-batch: level "mesh" must run the same
  // products on every mesh. On average half a chunk is padding. On CPUs more than 256 rows gain no
  // speed. A GPU needs thousands of rows for the products of gradients, and gets equal chunks in
  // whole tiles of 128 rows.
  const bool on_gpu = ctx.queue.device() == device::Kind::cuda;
  const int64_t rows = ctx.batch / ctx.slices * config_.length;
  const int64_t budget = std::clamp<int64_t>((config_.logits_mb << 20) / (4 * config_.vocabulary),
                                             1, on_gpu ? 4096 : 256);
  const int64_t even = base::round_up(base::ceil_div(rows, base::ceil_div(rows, budget)), 128);
  return std::min({on_gpu ? even : budget, budget, rows});
}

CaptionHead::Chunk CaptionHead::make_chunk(nn::Context& ctx, int64_t rows, bool gradient) const {
  return {.x = ctx.make_activation(false, rows * config_.width),
          .logits = ctx.arena.temporary(rows * config_.vocabulary),
          .dx = gradient ? ctx.arena.temporary(rows * config_.width) : View{}};
}

void CaptionHead::add_targets(const TextRows& rows, View labels, View weights, int64_t example,
                              int64_t global_batch, bool planned, Pass& pass) const {
  const int64_t length = config_.length;
  const int32_t first = rows.offsets[size_t(example)], computed = rows.rows_of(size_t(example));
  pass.examples.push_back(int32_t(pass.index.size()));
  auto add = [&](int64_t position, int64_t row, int32_t label, float scale) {
    pass.positions.push_back(int32_t(position));
    pass.index.push_back(int32_t(row));
    pass.labels.push_back(label);
    pass.scale.push_back(scale);
  };
  if (planned) {
    for (int64_t l = 0; l < computed; ++l) add(example * length + l, first + l, 0, 0);
    return;
  }
  const float* w = weights.f32() + example * length;
  double n = 0;
  for (int64_t l = 0; l < length; ++l) n += double(w[l]);
  for (int64_t l = 0; l < length; ++l) {
    if (!(w[l] > 0)) continue;
    CHECK(l < computed, "position {} of example {} carries weight and was not computed", l,
          example);
    const int64_t position = example * length + l;
    const float scale = global_batch && n > 0 ? float(double(w[l]) / n / double(global_batch)) : 0;
    add(position, first + l, labels.i32()[position], scale);
  }
}

void CaptionHead::place_targets(nn::Context& ctx, const TextRows& rows, View labels, View weights,
                                int64_t global_batch, Pass& pass) const {
  const bool planned = ctx.queue.kind() == device::Kind::plan;
  const int64_t chunk = chunk_rows(ctx), slices = global_batch ? ctx.slices : 1,
                examples = ctx.batch / slices;
  const size_t most = size_t(slices * base::round_up(examples * config_.length, chunk));
  auto pad = [&](int64_t n) {
    pass.positions.resize(size_t(n), -1);
    pass.index.resize(size_t(n), -1);
    pass.labels.resize(size_t(n), 0);
    pass.scale.resize(size_t(n), 0);
  };
  pad(0);
  pass.first.assign(1, 0);
  pass.examples.clear();
  pass.examples.reserve(size_t(ctx.batch));
  for (std::vector<int32_t>* v : {&pass.positions, &pass.index, &pass.labels}) v->reserve(most);
  pass.scale.reserve(most);
  for (int64_t j = 0; j < slices; ++j) {
    for (int64_t b = j * examples; b < (j + 1) * examples; ++b)
      add_targets(rows, labels, weights, b, global_batch, planned, pass);
    // At least one chunk: a slice without any target must still write its (zero) gradient.
    const int64_t chunks = base::ceil_div(int64_t(pass.index.size()), chunk);
    pass.first.push_back(global_batch ? std::max(chunks, pass.first.back() + 1) : chunks);
    pad(pass.first.back() * chunk);
  }
  pass.targets = {chunk,
                  ctx.table(true, pass.index),
                  ctx.table(true, pass.labels),
                  ctx.table(true, pass.scale),
                  ctx.arena.save(int64_t(pass.index.size())),
                  global_batch ? ctx.table(true, pass.examples) : View{},
                  {},
                  {}};
}

void CaptionHead::read_losses(nn::Context& ctx, const Pass& pass,
                              std::vector<float>& row_loss) const {
  std::fill(row_loss.begin(), row_loss.end(), 0.0f);
  device::read_on_host(pass.targets.loss, ctx.queue, [&](View loss) {
    for (size_t i = 0; i < pass.positions.size(); ++i)
      if (pass.positions[i] >= 0) row_loss[size_t(pass.positions[i])] = loss.f32()[i];
  });
}

void CaptionHead::forward_chunk(nn::Context& ctx, const Chunk& c, View normed, View index,
                                View kernel) const {
  ctx.run(kernels::GatherRows{.y = c.x,
                              .x = normed,
                              .index = index,
                              .rows = index.count,
                              .width = config_.width,
                              .source_rows = normed.count / config_.width});
  ctx.run(kernels::Gemm{.c = c.logits,
                        .a = c.x,
                        .b = kernel,
                        .bias = ctx.weight(head_.bias),
                        .m = index.count,
                        .n = head_.out,
                        .k = config_.width});
}

void CaptionHead::forward_backward(nn::Context& ctx, View y, const TextRows& text, View dy,
                                   int next_block, Pass& pass) const {
  const Targets& targets = pass.targets;
  backward_block(ctx, block_, next_block, [&] {
    device::Arena::Scope scope(ctx.arena);
    const int64_t rows = text.count(), chunk = targets.rows, examples = ctx.batch / ctx.slices;
    View normed = ctx.make_activation(false, rows * config_.width),
         dnormed = ctx.arena.temporary(rows * config_.width);
    nn::LayerNorm::Saved saved = norm_.make_saved(ctx, false, rows);
    norm_.forward(ctx, y, rows, normed, saved);
    ctx.run(kernels::Fill{.y = dnormed, .value = 0});
    Chunk c = make_chunk(ctx, chunk, true);
    View kernel = ctx.weight_operand(head_.kernel);
    nn::sum_over_slices(ctx, {head_.kernel, head_.bias}, [&](int64_t j, const auto& t) {
      // The number of chunks depends on the captions. The product that accumulates a second chunk's
      // gradient must be prepared before the first captions that need it. It runs once into memory
      // that the first chunk then overwrites.
      const bool real = ctx.queue.kind() != device::Kind::plan;
      if (real && !pass.accumulate_made && chunk < examples * config_.length && !t[0].view.none() &&
          t[0].write == Write::overwrite) {
        device::Arena::Scope operands(ctx.arena);
        const View sums = t[1].write == Write::overwrite ? t[1].view : View{};
        head_.parameter_gradients(ctx, {t[0].view, Write::accumulate}, {sums, Write::accumulate},
                                  ctx.operand(c.logits), c.x, chunk);
        pass.accumulate_made = true;
      }
      for (int64_t i = pass.first[size_t(j)]; i < pass.first[size_t(j) + 1]; ++i) {
        auto part = [&](View v) { return v.slice(i * chunk, chunk); };
        const View index = part(targets.index);
        device::Arena::Scope operands(ctx.arena);
        forward_chunk(ctx, c, normed, index, kernel);
        const bool narrow = ctx.activation() != device::DType::f32;
        const View d = narrow ? ctx.make_activation(false, c.logits.count) : c.logits;
        ctx.run(kernels::SoftmaxXent{.logits = c.logits,
                                     .labels = part(targets.labels),
                                     .row_scale = part(targets.scale),
                                     .loss = part(targets.loss),
                                     .rows = chunk,
                                     .columns = head_.out,
                                     .smoothing = config_.smoothing,
                                     .loss_scale = ctx.loss_scale,
                                     .rounded = narrow ? d : View{}});
        ctx.run(kernels::Gemm{.c = c.dx,
                              .a = d,
                              .b = kernel,
                              .m = chunk,
                              .n = config_.width,
                              .k = head_.out,
                              .trans_b = true});
        ctx.run(kernels::ScatterRows{.y = dnormed,
                                     .x = c.dx,
                                     .index = index,
                                     .rows = chunk,
                                     .width = config_.width,
                                     .target_rows = rows});
        const bool more = i > pass.first[size_t(j)];
        auto target = [&](nn::Linear::Target to) {
          return nn::Linear::Target{to.view, more ? Write::accumulate : to.write};
        };
        head_.parameter_gradients(ctx, target(t[0]), target(t[1]), d, c.x, chunk);
      }
    });
    norm_.backward(ctx, dnormed, y, text.rows(), saved, dy, Write::overwrite);
  });
}

void CaptionHead::pick_logits(nn::Context& ctx, const Chunk& c, int64_t chunk,
                              const Pass& pass) const {
  const int64_t first = pass.first_pick[size_t(chunk)],
                count = pass.first_pick[size_t(chunk) + 1] - first;
  if (count == 0) return;
  ctx.run(kernels::GatherRows{.y = pass.targets.picked.slice(first, count),
                              .x = c.logits,
                              .index = pass.targets.pick_index.slice(first, count),
                              .rows = count,
                              .width = 1,
                              .source_rows = c.logits.count});
}

void CaptionHead::evaluate(nn::Context& ctx, View y, const TextRows& text, const Pass& pass) const {
  const Targets& targets = pass.targets;
  ForwardBlock block(ctx, block_, -1);
  device::Arena::Scope scope(ctx.arena);
  const int64_t rows = text.count(), chunk = targets.rows;
  View normed = ctx.make_activation(false, rows * config_.width);
  norm_.forward(ctx, y, rows, normed, norm_.make_saved(ctx, false, rows));
  Chunk c = make_chunk(ctx, chunk, false);
  View kernel = ctx.weight_operand(head_.kernel);
  for (int64_t i = 0; i < pass.first.back(); ++i) {
    const int64_t count = std::min(chunk, targets.index.count - i * chunk);
    auto part = [&](View v) { return v.slice(i * chunk, count); };
    const Chunk some{.x = c.x.slice(0, count * config_.width),
                     .logits = c.logits.slice(0, count * config_.vocabulary),
                     .dx = {}};
    forward_chunk(ctx, some, normed, part(targets.index), kernel);
    if (!targets.picked.none()) pick_logits(ctx, some, i, pass);
    ctx.run(kernels::SoftmaxXent{.logits = some.logits,
                                 .labels = part(targets.labels),
                                 .loss = part(targets.loss),
                                 .rows = count,
                                 .columns = head_.out,
                                 .gradient = false});
  }
}

void CaptionHead::logits(nn::Context& ctx, View y, View out) const {
  ForwardBlock block(ctx, block_, -1);
  device::Arena::Scope scope(ctx.arena);
  int64_t rows = ctx.batch * config_.length;
  View normed = ctx.make_activation(false, rows * config_.width);
  norm_.forward(ctx, y, rows, normed, norm_.make_saved(ctx, false, rows));
  head_.forward(ctx, normed, rows, out);
}

}  // namespace models
