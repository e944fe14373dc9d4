// SPDX-License-Identifier: Apache-2.0
// The pass that generates captions: encodes the images once, then runs the decoder position by
// position until every caption has ended.
#include <algorithm>

#include "kernels/softmax_xent.hpp"
#include "models/captions/cappa.hpp"
#include "models/captions/caption_search.hpp"
#include "models/decoders/caption_attention.hpp"
#include "models/decoders/caption_steps.hpp"

namespace models {
namespace {

class CappaCaptionPass : public CaptionPass {
 public:
  CappaCaptionPass(const Cappa& model, const CaptionLimits& limits)
      : model_(model),
        places_(limits.places),
        length_(limits.length ? limits.length : model.options().length()),
        attends_(limits.attention),
        encoder_(model.encoder().make_pass()),
        steps_(model.decoder(), model.head()) {
    if (length_ > model.options().length())
      base::fail(base::Exit::config,
                 "captions of {} tokens are asked for, but the model's texts have at most {} "
                 "(model.seq_len); use a smaller max_length, or 0 for the whole length",
                 length_, model.options().length());
    CHECK(places_ >= 1 && length_ >= 1, "captions of {} tokens at {} places", length_, places_);
  }
  std::string name() const override {
    return fmt::format("caption, {} places, {} tokens{}", places_, length_,
                       attends_ ? ", attention" : "");
  }
  std::pair<int64_t, int64_t> grid() const override {
    const ImageGroup images = model_.images();
    const TokenGrid grid = model_.encoder().grid(images.height, images.width);
    return {grid.height, grid.width};
  }
  std::vector<InputSpec> inputs() const override { return {model_.inputs().front()}; }
  void plan(nn::Context& ctx, const Inputs& inputs) override;
  void run(nn::Context& ctx, const Inputs& inputs, const DecodeOptions& options, int64_t examples,
           int64_t first_position, std::vector<Caption>& captions) override;

 private:
  int64_t slots(const nn::Context& ctx) const { return ctx.batch * places_; }
  void begin(nn::Context& ctx, const Inputs& inputs);
  // Computes the logits of a step and the negative log-likelihoods of id 0, for all rows.
  void step(nn::Context& ctx, int64_t step, const CaptionSteps::Rows& rows);
  // Returns the memory for the queries of `rows` rows of a step; none without attends_.
  View queries_of(int64_t rows) const {
    return attends_ ? queries_.slice(0, rows * model_.decoder().config().width) : View{};
  }
  // Fills in `attention` of the first captions: decodes their ids once more.
  void attend(nn::Context& ctx, size_t count, std::vector<Caption>& captions);

  const Cappa& model_;
  int64_t places_, length_;
  bool attends_;
  std::unique_ptr<Trunk::Pass> encoder_;
  CaptionSteps steps_;
  View logits_, zeros_, nll_;  // [slots, vocabulary], i32 [slots], [slots]
  View queries_;               // [slots, width]; none without attends_
  std::vector<int32_t> host_zeros_;
  std::vector<float> host_nll_;
};

void CappaCaptionPass::begin(nn::Context& ctx, const Inputs& inputs) {
  CHECK(!ctx.keep);
  const ImageGroup images = model_.images(inputs.at("image").device);
  model_.encoder().place(ctx, {&images, 1}, *encoder_);
  const Tokens& encoded =
      model_.encoder().forward(ctx, {&images, 1}, model_.decoder().first_block(), *encoder_);
  steps_.begin(ctx, encoded.of_one_size(), slots(ctx), length_);
  host_zeros_.assign(size_t(slots(ctx)), 0);
  host_nll_.resize(size_t(slots(ctx)));
  zeros_ = ctx.table(true, host_zeros_);
  logits_ = ctx.arena.save(slots(ctx) * steps_.vocabulary());
  nll_ = ctx.arena.save(slots(ctx));
  queries_ = attends_
                 ? ctx.arena.save(slots(ctx) * model_.decoder().config().width, ctx.activation())
                 : View{};
}

void CappaCaptionPass::step(nn::Context& ctx, int64_t step, const CaptionSteps::Rows& rows) {
  const int64_t count = int64_t(rows.ids.size());
  const View logits = logits_.slice(0, count * steps_.vocabulary());
  steps_.step(ctx, step, rows, logits, queries_of(count));
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
  const int64_t attended = std::clamp<int64_t>(options.attention - first_position, 0, examples);
  CHECK(attends_ || attended == 0, "the pass keeps no queries");
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
  if (attended > 0) attend(ctx, size_t(attended), captions);
  ctx.arena.pop_low(start);
}

// Decodes the ids once more. The search no longer needs its cache rows, so they are overwritten.
// Each step computes the same queries as the search, because ops compute each row independently.
void CappaCaptionPass::attend(nn::Context& ctx, size_t count, std::vector<Caption>& captions) {
  const DecoderConfig& config = model_.decoder().config();
  const std::vector<float> keys = values_of(ctx.queue, steps_.last_cache().image_k);
  const int64_t slots = this->slots(ctx), image = config.memory_length * config.width;
  std::vector<std::vector<int32_t>> past(count);
  CaptionSteps::Rows rows;
  for (int64_t t = 0;; ++t) {
    rows = {};
    for (size_t b = 0; b < count; ++b) {
      const std::vector<int32_t>& ids = captions[b].ids;
      if (int64_t(ids.size()) <= t) continue;
      past[b].push_back(int32_t(t * slots + int64_t(rows.ids.size())));
      rows.ids.push_back(t == 0 ? 0 : ids[size_t(t - 1)]);
      rows.images.push_back(int32_t(b));
      rows.past.insert(rows.past.end(), past[b].begin(), past[b].end());
    }
    if (rows.ids.empty()) return;
    const int64_t n = int64_t(rows.ids.size());
    steps_.step(ctx, t, rows, logits_.slice(0, n * steps_.vocabulary()), queries_of(n));
    const std::vector<float> queries = values_of(ctx.queue, queries_of(n));
    for (int64_t r = 0; r < n; ++r) {
      const int32_t b = rows.images[size_t(r)];
      const std::vector<float> weights =
          mean_attention({queries.data() + r * config.width, size_t(config.width)},
                         {keys.data() + b * image, size_t(image)}, config.heads);
      std::vector<float>& out = captions[size_t(b)].attention;
      out.insert(out.end(), weights.begin(), weights.end());
    }
  }
}

}  // namespace

std::unique_ptr<CaptionPass> Cappa::make_caption_pass(const CaptionLimits& limits) const {
  return std::make_unique<CappaCaptionPass>(*this, limits);
}

}  // namespace models
