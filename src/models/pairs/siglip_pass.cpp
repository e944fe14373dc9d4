// SPDX-License-Identifier: Apache-2.0
// The passes of SigLIP: training, and cosines of images and texts.
#include <algorithm>
#include <cmath>

#include "base/fused.hpp"
#include "kernels/example_sums.hpp"
#include "kernels/l2_normalize.hpp"
#include "models/losses/step_batch.hpp"
#include "models/pairs/siglip.hpp"

namespace models {
namespace {

using device::DType;

// Trains both towers in the phases of CoupledPass, as the pass of embedding models trains its
// network.
class SiglipPass : public CoupledPass {
 public:
  explicit SiglipPass(const Siglip& model) : model_(model), state_(model.make_state()) {}
  std::string name() const override { return "train"; }
  std::vector<InputSpec> inputs() const override { return model_.inputs(); }
  void prepare(const HostBatch& batch, base::Stream, const Inputs& into) const override {
    const View ids = into.at("labels").host;
    model_.check_ids(ids.i32(), ids.count,
                     fmt::format("the texts from position {} on", batch.first_position));
  }

  bool two_phases() const override { return true; }

  void begin_step(nn::Context& ctx, int64_t global_batch) override {
    start_ = ctx.arena.low();
    step_ = {.examples = global_batch,
             .views = 1,
             .widths = {model_.dim(), model_.dim()},
             .teacher_widths = {},
             .parts = {}};
    for (int64_t m = 0; m < ctx.passes; ++m) add_part(ctx);
  }

  void embed(nn::Context& ctx, const Inputs& inputs) override { forward(ctx, inputs); }
  void form_loss(nn::Context& ctx) override { model_.loss().run(ctx, step_); }

  void run(nn::Context& ctx, const Inputs& inputs, int64_t, View sums) override {
    StepEmbeddings::Part& part = step_.parts[size_t(ctx.pass)];
    forward(ctx, inputs);
    if (ctx.passes == 1) form_loss(ctx);
    add_parameter_gradients(ctx, model_.loss(), part, model_.last_block());
    model_.backward(ctx, part.gradients, state_);
    ctx.run(kernels::ExampleSums{.sums = sums,
                                 .values = part.loss,
                                 .batch = ctx.batch,
                                 .columns = model_.sum_columns(),
                                 .slices = ctx.slices});
  }

  void end_step(nn::Context& ctx) override { ctx.arena.pop_low(start_); }

 private:
  // Makes room for the embeddings of a pass.
  void add_part(nn::Context& ctx) {
    StepEmbeddings::Part& part = step_.parts.emplace_back();
    const int64_t n = ctx.batch;
    part.first = ctx.first_example % step_.examples +
                 int64_t(step_.parts.size() - 1) * n * ctx.group->ranks_of_replica();
    for (const int64_t width : step_.widths) {
      part.outputs.push_back(ctx.arena.save(n * width));
      part.gradients.push_back(ctx.arena.save(n * width));
    }
    part.loss = ctx.arena.save(n);
    for (size_t p = 0; p < model_.loss().parameters().size(); ++p)
      part.parameters.push_back(ctx.arena.save(n));
  }

  void forward(nn::Context& ctx, const Inputs& inputs) {
    device::Arena::Scope scope(ctx.arena);
    const StepEmbeddings::Part& part = step_.parts[size_t(ctx.pass)];
    state_.start = ctx.arena.low();
    model_.place_images(ctx, state_);
    model_.place_texts(ctx, state_);
    model_.embed_images(ctx, inputs.at("image").device, part.outputs[0], model_.text_block(),
                        state_);
    model_.embed_texts(ctx, inputs.at("labels").device, part.outputs[1], state_);
    if (!ctx.keep) ctx.arena.pop_low(state_.start);
  }

  const Siglip& model_;
  Siglip::State state_;
  device::Arena::Mark start_{};
  StepEmbeddings step_;
};

// Embeds the images of each batch, and the texts once for all batches (siglip.md 4). Products see
// one image or one text, unless their rows are alike anyway. Texts always run kTexts at a time. So
// a cosine has the same bits in every batch.
class SiglipScores : public PairScorePass {
 public:
  explicit SiglipScores(const Siglip& model) : model_(model), state_(model.make_state()) {}
  std::string name() const override { return "score pairs"; }
  std::vector<InputSpec> inputs() const override { return {model_.image_input()}; }
  PairScore kind() const override { return PairScore::cosine; }
  void begin() override { seen_ = {}; }
  std::vector<int64_t> tokens(const TextList& texts) const override {
    return std::vector<int64_t>(size_t(texts.count()), texts.length);
  }

  void run(nn::Context& ctx, const Inputs& inputs, const TextList& texts, double* scores) override {
    if (texts.ids != seen_.ids || texts.group != seen_.group) embed(ctx, texts);
    device::Arena::Scope scope(ctx.arena);
    const View images = embed_images(ctx, inputs);
    const int64_t columns = this->columns(texts);
    for (int64_t first = 0; first < columns; first += kTexts) {
      const int64_t count = std::min(kTexts, columns - first);
      compare(ctx, images, first, count, scores + first, columns);
    }
  }

  void plan(nn::Context& ctx, const Inputs& inputs) override {
    embed_chunk(ctx, std::vector<int32_t>(size_t(kTexts * model_.text().length()), 0), nullptr);
    device::Arena::Scope scope(ctx.arena);
    directions_.assign(size_t(model_.dim()), 0.0f);
    compare(ctx, embed_images(ctx, inputs), 0, 1, nullptr, 1);
  }

 private:
  static constexpr int64_t kTexts = 64;  // texts that run at a time

  nn::Context by_row(const nn::Context& ctx, int64_t rows) const {
    nn::Context c = ctx;
    c.batch = rows;
    c.slices = ctx.queue.rows_alike() ? 1 : rows;
    return c;
  }

  View normalised(nn::Context& ctx, View x) const {
    ctx.run(kernels::L2NormalizeForward{
        .y = x, .x = x, .rows = x.count / model_.dim(), .width = model_.dim()});
    return x;
  }

  // Returns the normalised embeddings of the images, as a temporary.
  View embed_images(nn::Context& ctx, const Inputs& inputs) {
    CHECK(!ctx.keep);
    nn::Context images = by_row(ctx, ctx.batch);
    const View out = ctx.arena.temporary(ctx.batch * model_.dim());
    device::Arena::Scope scope(ctx.arena);
    const device::Arena::Mark start = ctx.arena.low();
    model_.place_images(images, state_);
    // No text follows, so no weights are gathered ahead.
    model_.embed_images(images, inputs.at("image").device, out, -1, state_);
    ctx.arena.pop_low(start);
    return normalised(ctx, out);
  }

  // Writes the normalised embeddings of kTexts texts to `to`, unless it is null.
  void embed_chunk(nn::Context& ctx, const std::vector<int32_t>& ids, float* to) {
    nn::Context texts = by_row(ctx, kTexts);
    device::Arena::Scope scope(ctx.arena);
    const device::Arena::Mark start = ctx.arena.low();
    const View out = ctx.arena.temporary(kTexts * model_.dim()), table = ctx.table(false, ids);
    model_.place_texts(texts, state_);
    model_.embed_texts(texts, table, out, state_);
    ctx.arena.pop_low(start);
    normalised(ctx, out);
    device::read_on_host(out, ctx.queue, [&](View v) { std::copy_n(v.f32(), v.count, to); });
  }

  // Computes directions_ of all groups of texts.
  void embed(nn::Context& ctx, const TextList& texts) {
    check(texts);
    const int64_t count = texts.count(), dim = model_.dim(), length = texts.length,
                  padded = (count + kTexts - 1) / kTexts * kTexts;
    std::vector<float> embeddings(size_t(padded * dim));
    std::vector<int32_t> ids(size_t(kTexts * length));
    for (int64_t first = 0; first < count; first += kTexts) {
      const int64_t some = std::min(kTexts, count - first);
      std::fill(ids.begin(), ids.end(), 0);
      std::copy_n(texts.ids.begin() + first * length, some * length, ids.begin());
      embed_chunk(ctx, ids, embeddings.data() + first * dim);
    }
    embeddings.resize(size_t(count * dim));
    directions_ = texts.group == 1 ? std::move(embeddings) : means(embeddings, texts.group);
    seen_ = texts;
  }

  void check(const TextList& texts) const {
    if (texts.length != model_.text().length())
      base::fail(base::Exit::data,
                 "texts of {} tokens; the model reads {} (model.seq_len), padding included",
                 texts.length, model_.text().length());
    CHECK(texts.group >= 1 && texts.count() % texts.group == 0, "{} texts in groups of {}",
          texts.count(), texts.group);
    model_.check_ids(texts.ids.data(), int64_t(texts.ids.size()), "the list of texts");
  }

  // Returns the normalised mean of each group of embeddings.
  std::vector<float> means(const std::vector<float>& embeddings, int64_t group) const {
    const int64_t dim = model_.dim(), groups = int64_t(embeddings.size()) / dim / group;
    std::vector<float> out(size_t(groups * dim));
    std::vector<double> mean(static_cast<size_t>(dim));
    for (int64_t g = 0; g < groups; ++g) {
      std::fill(mean.begin(), mean.end(), 0.0);
      double square = 0;
      for (int64_t i = 0; i < group * dim; ++i)
        mean[size_t(i % dim)] += double(embeddings[size_t(g * group * dim + i)]) / double(group);
      for (const double m : mean) square = base::fused(m, m, square);
      for (int64_t i = 0; i < dim; ++i)
        out[size_t(g * dim + i)] = float(mean[size_t(i)] / (std::sqrt(square) + 1e-8));
    }
    return out;
  }

  // Writes the cosines of all images with some directions; a row of scores has `stride` numbers.
  void compare(nn::Context& ctx, View images, int64_t first, int64_t count, double* scores,
               int64_t stride) const {
    device::Arena::Scope scope(ctx.arena);
    const int64_t dim = model_.dim(), n = ctx.batch;
    std::vector<float> some(size_t(kTexts * dim));
    std::copy_n(directions_.begin() + first * dim, count * dim, some.begin());
    const View texts = ctx.table(false, some), cosines = ctx.arena.temporary(n * kTexts);
    const int64_t slices = ctx.queue.rows_alike() ? 1 : n;
    for (int64_t j = 0; j < slices; ++j)
      ctx.run(kernels::Gemm{.c = cosines.slice(j * n / slices * kTexts, n / slices * kTexts),
                            .a = images.slice(j * n / slices * dim, n / slices * dim),
                            .b = texts,
                            .m = n / slices,
                            .n = kTexts,
                            .k = dim,
                            .trans_b = true});
    device::read_on_host(cosines, ctx.queue, [&](View v) {
      for (int64_t i = 0; i < n; ++i) std::copy_n(v.f32() + i * kTexts, count, scores + i * stride);
    });
  }

  const Siglip& model_;
  Siglip::State state_;
  TextList seen_;                  // the texts whose directions are kept
  std::vector<float> directions_;  // of each group of texts, [groups, dim]
};

}  // namespace

std::unique_ptr<TrainPass> make_siglip_pass(const Siglip& model) {
  return std::make_unique<SiglipPass>(model);
}

std::unique_ptr<PairScorePass> make_siglip_scores(const Siglip& model) {
  return std::make_unique<SiglipScores>(model);
}

}  // namespace models
