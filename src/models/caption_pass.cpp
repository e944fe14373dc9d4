// SPDX-License-Identifier: Apache-2.0
// The pass that generates captions: encodes the images once, then runs the decoder position by
// position until every caption has ended.
#include <algorithm>
#include <cstring>

#include "kernels/softmax_xent.hpp"
#include "models/cappa.hpp"
#include "models/caption_search.hpp"
#include "models/caption_steps.hpp"

namespace models {
namespace {

class CappaCaptionPass : public CaptionPass {
 public:
  CappaCaptionPass(const Cappa& model, const CaptionLimits& limits)
      : model_(model),
        places_(limits.places),
        length_(limits.length ? limits.length : model.options().length()),
        steps_(model.decoder(), model.head()) {
    if (length_ > model.options().length())
      base::fail(base::Exit::config,
                 "captions of {} tokens are asked for, and the texts of the model have {} "
                 "(model.seq_len); use a smaller max_length, or 0 for the whole length",
                 length_, model.options().length());
    CHECK(places_ >= 1 && length_ >= 1, "captions of {} tokens at {} places", length_, places_);
  }
  std::string name() const override {
    return fmt::format("caption, {} places, {} tokens", places_, length_);
  }
  std::vector<InputSpec> inputs() const override { return {model_.inputs().front()}; }
  void prepare(const HostBatch& batch, const Inputs& into) const override;
  void plan(nn::Context& ctx, const Inputs& inputs) override;
  void run(nn::Context& ctx, const Inputs& inputs, const DecodeOptions& options, int64_t examples,
           int64_t first_position, std::vector<Caption>& captions) override;

 private:
  int64_t slots(const nn::Context& ctx) const { return ctx.batch * places_; }
  void begin(nn::Context& ctx, const Inputs& inputs);
  // Computes the logits of a step and the negative log-likelihoods of id 0, for all rows.
  void step(nn::Context& ctx, int64_t step, const CaptionSteps::Rows& rows);

  const Cappa& model_;
  int64_t places_, length_;
  Vit::Pass encoder_;
  CaptionSteps steps_;
  View logits_, zeros_, nll_;  // [slots, vocabulary], i32 [slots], [slots]
  std::vector<int32_t> host_zeros_;
  std::vector<float> host_nll_;
};

void CappaCaptionPass::prepare(const HostBatch& batch, const Inputs& into) const {
  const View from = batch.features.at("image"), to = into.at("image").host;
  CHECK(from.type == to.type && from.count == to.count, "{} images do not fit the buffer",
        batch.examples);
  std::memcpy(to.data, from.data, size_t(from.bytes()));
}

void CappaCaptionPass::begin(nn::Context& ctx, const Inputs& inputs) {
  CHECK(!ctx.keep);
  model_.encoder().place(ctx, encoder_);
  const View encoded = model_.encoder().forward(ctx, inputs.at("image").device,
                                                model_.decoder().first_block(), encoder_);
  steps_.begin(ctx, encoded, slots(ctx), length_);
  host_zeros_.assign(size_t(slots(ctx)), 0);
  host_nll_.resize(size_t(slots(ctx)));
  zeros_ = ctx.table(true, host_zeros_);
  logits_ = ctx.arena.save(slots(ctx) * steps_.vocabulary());
  nll_ = ctx.arena.save(slots(ctx));
}

void CappaCaptionPass::step(nn::Context& ctx, int64_t step, const CaptionSteps::Rows& rows) {
  const int64_t count = int64_t(rows.ids.size());
  const View logits = logits_.slice(0, count * steps_.vocabulary());
  steps_.step(ctx, step, rows, logits);
  ctx.run(kernels::SoftmaxXent{.logits = logits,
                               .labels = zeros_.slice(0, count),
                               .loss = nll_.slice(0, count),
                               .rows = count,
                               .columns = steps_.vocabulary(),
                               .gradient = false});
}

void CappaCaptionPass::plan(nn::Context& ctx, const Inputs& inputs) {
  const device::Arena::Mark start = ctx.arena.low();
  begin(ctx, inputs);
  // The last step has the largest tables.
  const size_t rows = size_t(slots(ctx));
  step(ctx, length_ - 1,
       {std::vector<int32_t>(rows), std::vector<int32_t>(rows),
        std::vector<int32_t>(rows * size_t(length_))});
  ctx.arena.pop_low(start);
}

void CappaCaptionPass::run(nn::Context& ctx, const Inputs& inputs, const DecodeOptions& options,
                           int64_t examples, int64_t first_position,
                           std::vector<Caption>& captions) {
  const int64_t length = options.max_length ? options.max_length : length_;
  CHECK(examples <= ctx.batch && options.places() <= places_ && length <= length_,
        "{} examples, {} places and {} tokens in a pass of {}, {} and {}", examples,
        options.places(), length, ctx.batch, places_, length_);
  const device::Arena::Mark start = ctx.arena.low();
  begin(ctx, inputs);
  CaptionSearch search(options, examples, first_position, slots(ctx), length);
  while (!search.done()) {
    step(ctx, search.step(), search.rows());
    const int64_t count = int64_t(search.rows().ids.size());
    device::download(host_nll_.data(), nll_.slice(0, count), ctx.queue);
    device::read_on_host(
        logits_.slice(0, count * steps_.vocabulary()), ctx.queue,
        [&](View logits) { search.advance(logits.f32(), host_nll_.data(), steps_.vocabulary()); });
  }
  captions = search.captions();
  ctx.arena.pop_low(start);
}

}  // namespace

std::unique_ptr<CaptionPass> Cappa::make_caption_pass(const CaptionLimits& limits) const {
  return std::make_unique<CappaCaptionPass>(*this, limits);
}

}  // namespace models
