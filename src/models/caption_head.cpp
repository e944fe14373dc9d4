#include "models/caption_head.hpp"

#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/gemm.hpp"
#include "kernels/softmax_xent.hpp"
#include "models/block_scope.hpp"

namespace models {

CaptionHead::CaptionHead(const CappaOptions& options, const LossOptions& loss, int64_t logits_mb, ParameterList& list)
    : options_(options), loss_(loss), logits_mb_(logits_mb), width_(options.decoder_width()), length_(options.length()) {
  block_ = list.begin_block("decoder/head");
  norm_ = list.layer_norm("decoder/LayerNorm", width_, true);
  head_ = {.in = width_, .out = options.vocab_size};
  head_.kernel = list.add_operand("decoder/LogitsDense/kernel", {width_, options.vocab_size}, ParameterList::zeros());
  head_.bias = list.add("decoder/LogitsDense/bias", {options.vocab_size}, ParameterList::zeros());
}

int64_t CaptionHead::chunk_rows(nn::Context& ctx) const {
  // Depends on the slice, not on the micro-batch: level "mesh" must see the same products on every mesh. More rows than 256 gain
  // no speed, and half a chunk is computed for nothing on average.
  int64_t budget = (logits_mb_ << 20) / (4 * options_.vocab_size);
  return std::clamp<int64_t>(std::min<int64_t>(budget, 256), 1, ctx.batch / ctx.slices * length_);
}

CaptionHead::Chunk CaptionHead::make_chunk(nn::Context& ctx, int64_t rows, bool gradient) const {
  auto ints = [&](int64_t n) { return ctx.arena.temporary(n, device::DType::i32); };
  return {.x = ctx.make_activation(false, rows * width_), .logits = ctx.arena.temporary(rows * options_.vocab_size),
          .dx = gradient ? ctx.arena.temporary(rows * width_) : View{}, .index = ints(rows), .labels = ints(rows),
          .scale = ctx.arena.temporary(rows), .loss = ctx.arena.temporary(rows)};
}

void CaptionHead::find_targets(nn::Context& ctx, const TextRows& rows, View weights, int64_t begin, int64_t end) {
  bool real = ctx.queue.kind() != device::Kind::plan;
  targets_.clear();
  targets_.reserve(size_t((end - begin) * length_));
  for (int64_t b = begin; b < end; ++b)
    for (int64_t l = 0; l < length_; ++l) {
      int64_t position = b * length_ + l, first = rows.offsets[size_t(b)];
      const bool computed = first + l < rows.offsets[size_t(b) + 1];
      if (real ? !(weights.f32()[position] > 0) : !computed) continue;
      CHECK(computed, "position {} of example {} carries weight and was not computed", l, b);
      targets_.push_back({int32_t(position), int32_t(first + l)});
    }
}

void CaptionHead::pack(nn::Context& ctx, const Chunk& chunk, size_t begin, View labels, const std::vector<float>& scale) const {
  if (ctx.queue.kind() == device::Kind::plan) return;
  for (int64_t i = 0; i < chunk.index.count; ++i) {
    size_t at = begin + size_t(i);
    bool real = at < targets_.size();
    size_t position = real ? size_t(targets_[at].position) : 0;
    chunk.index.i32()[i] = real ? targets_[at].row : -1;
    chunk.labels.i32()[i] = real ? labels.i32()[position] : 0;
    chunk.scale.f32()[i] = real ? scale[position] : 0;
  }
}

void CaptionHead::keep_losses(nn::Context& ctx, const Chunk& chunk, size_t begin, float* row_loss) const {
  if (ctx.queue.kind() == device::Kind::plan) return;
  for (size_t i = 0; i < size_t(chunk.loss.count) && begin + i < targets_.size(); ++i)
    row_loss[targets_[begin + i].position] = chunk.loss.f32()[i];
}

void CaptionHead::forward_backward(nn::Context& ctx, View y, const TextRows& text, View labels, View weights,
                                   int64_t global_batch, float* row_loss, View dy, int next_block) {
  backward_block(ctx, block_, next_block, [&] {
    device::Arena::Scope scope(ctx.arena);
    bool real = ctx.queue.kind() != device::Kind::plan;
    const int64_t rows = text.count(), positions = ctx.batch * length_, chunk = chunk_rows(ctx);
    const int64_t examples = ctx.batch / ctx.slices;
    View normed = ctx.make_activation(false, rows * width_), dnormed = ctx.arena.temporary(rows * width_);
    nn::LayerNorm::Saved saved = norm_.make_saved(ctx, false, rows);
    norm_.forward(ctx, y, rows, normed, saved);
    ctx.run(kernels::Fill{.y = dnormed, .value = 0});
    if (real) {
      std::fill(row_loss, row_loss + positions, 0.0f);
      scale_.resize(size_t(positions));
      for (int64_t b = 0; b < ctx.batch; ++b) {
        const float* w = weights.f32() + b * length_;
        double n = 0;
        for (int64_t l = 0; l < length_; ++l) n += double(w[l]);
        for (int64_t l = 0; l < length_; ++l)
          scale_[size_t(b * length_ + l)] = n > 0 ? float(double(w[l]) / n / double(global_batch)) : 0;
      }
    }
    Chunk c = make_chunk(ctx, chunk, true);
    View kernel = ctx.weight_operand(head_.kernel);
    nn::sum_over_slices(ctx, {head_.kernel, head_.bias}, [&](int64_t j, const auto& t) {
      find_targets(ctx, text, weights, j * examples, (j + 1) * examples);
      // How many chunks there are depends on the captions. The product that adds a second chunk's gradient must exist before the
      // first such captions come, so that nothing is made later: it runs once where the first chunk then overwrites.
      if (real && !adds_ && chunk < examples * length_ && !t[0].view.none() && t[0].write == Write::overwrite) {
        device::Arena::Scope operands(ctx.arena);
        ctx.run(kernels::Gemm{.c = t[0].view, .a = c.x, .b = ctx.operand(c.logits), .m = width_, .n = head_.out,
                              .k = chunk, .trans_a = true, .write = Write::accumulate});
        adds_ = true;
      }
      // At least one chunk: a slice without any target must still write its (zero) gradient.
      for (size_t begin = 0; begin == 0 || begin < targets_.size(); begin += size_t(chunk)) {
        pack(ctx, c, begin, labels, scale_);
        ctx.run(kernels::GatherRows{.y = c.x, .x = normed, .index = c.index, .rows = chunk, .width = width_, .source_rows = rows});
        device::Arena::Scope operands(ctx.arena);
        ctx.run(kernels::Gemm{.c = c.logits, .a = c.x, .b = kernel, .bias = ctx.weight(head_.bias), .m = chunk, .n = head_.out,
                              .k = width_});
        ctx.run(kernels::SoftmaxXent{.logits = c.logits, .labels = c.labels, .row_scale = c.scale, .loss = c.loss, .rows = chunk,
                                     .columns = head_.out, .smoothing = float(loss_.label_smoothing)});
        keep_losses(ctx, c, begin, row_loss);
        View d = ctx.operand(c.logits);
        ctx.run(kernels::Gemm{.c = c.dx, .a = d, .b = kernel, .m = chunk, .n = width_, .k = head_.out, .trans_b = true});
        ctx.run(kernels::ScatterRows{.y = dnormed, .x = c.dx, .index = c.index, .rows = chunk, .width = width_, .target_rows = rows});
        auto write = [&](const shard::GradientStore::Target& target) { return begin ? Write::accumulate : target.write; };
        if (!t[0].view.none())
          ctx.run(kernels::Gemm{.c = t[0].view, .a = c.x, .b = d, .m = width_, .n = head_.out, .k = chunk, .trans_a = true,
                                .write = write(t[0])});
        if (!t[1].view.none())
          ctx.run(kernels::ColumnSum{.out = t[1].view, .x = c.logits, .m = chunk, .n = head_.out, .write = write(t[1])});
      }
    });
    norm_.backward(ctx, dnormed, y, text.rows(), saved, dy, Write::overwrite);
  });
}

void CaptionHead::evaluate(nn::Context& ctx, View y, const TextRows& text, View labels, View weights, float* row_loss) {
  ForwardBlock block(ctx, block_, -1);
  device::Arena::Scope scope(ctx.arena);
  const int64_t rows = text.count(), positions = ctx.batch * length_, chunk = chunk_rows(ctx);
  View normed = ctx.make_activation(false, rows * width_);
  norm_.forward(ctx, y, rows, normed, norm_.make_saved(ctx, false, rows));
  Chunk c = make_chunk(ctx, chunk, false);
  View kernel = ctx.weight_operand(head_.kernel);
  find_targets(ctx, text, weights, 0, ctx.batch);
  scale_.assign(size_t(positions), 0);
  if (ctx.queue.kind() != device::Kind::plan) std::fill(row_loss, row_loss + positions, 0.0f);
  for (size_t begin = 0; begin < targets_.size(); begin += size_t(chunk)) {
    pack(ctx, c, begin, labels, scale_);
    ctx.run(kernels::GatherRows{.y = c.x, .x = normed, .index = c.index, .rows = chunk, .width = width_, .source_rows = rows});
    device::Arena::Scope operands(ctx.arena);
    ctx.run(kernels::Gemm{.c = c.logits, .a = c.x, .b = kernel, .bias = ctx.weight(head_.bias), .m = chunk,
                          .n = head_.out, .k = width_});
    ctx.run(kernels::SoftmaxXent{.logits = c.logits, .labels = c.labels, .loss = c.loss, .rows = chunk, .columns = head_.out,
                                 .gradient = false});
    keep_losses(ctx, c, begin, row_loss);
  }
}

void CaptionHead::logits(nn::Context& ctx, View y, View out) {
  ForwardBlock block(ctx, block_, -1);
  device::Arena::Scope scope(ctx.arena);
  int64_t rows = ctx.batch * length_;
  View normed = ctx.make_activation(false, rows * width_);
  norm_.forward(ctx, y, rows, normed, norm_.make_saved(ctx, false, rows));
  head_.forward(ctx, normed, rows, out);
}

int64_t CaptionHead::forward_flops() const { return 2 * options_.seq_len * width_ * options_.vocab_size; }

}  // namespace models
