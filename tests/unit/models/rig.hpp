// SPDX-License-Identifier: Apache-2.0
// A CapPa on one rank: parameters in real stores, an arena of the needed size, and batches from
// host arrays.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "models/captions/cappa.hpp"
#include "one_rank.hpp"

namespace rig {

using device::View;
using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

// Returns a small model whose sizes all differ.
inline models::CappaOptions small_options() {
  models::CappaOptions o;
  o.image_size = 16;
  o.vocab_size = 61;
  o.seq_len = 9;
  o.masked_pred_prob = 0.5;
  o.masking_ratio = 0.7;
  o.encoder = {.variant = "", .patch = 8, .depth = 2, .width = 24, .mlp = 40, .heads = 3};
  o.decoder = {.depth = 2, .width = 20, .mlp = 36, .heads = 2, .bias = true};
  return o;
}

// Captions are words, end = 1, pad = 0; images are noise. Values are exact in float and the same
// for every batch size.
struct MadeBatch {
  Floats image;
  Ints labels;
  MadeBatch(const models::CappaOptions& o, int64_t examples, uint64_t seed = 3) {
    int64_t pixels = o.height() * o.width() * 3, length = o.length();
    base::Stream s(seed, "made batch");
    for (int64_t i = 0; i < examples * pixels; ++i)
      image.push_back(2 * s.sub(0).uniform(uint64_t(i)) - 1);
    for (int64_t b = 0; b < examples; ++b) {
      int64_t words = (5 * b) % (length + 1);  // an empty caption now and then
      for (int64_t l = 0; l < length; ++l) {
        auto word =
            3 + int32_t(s.sub(1).bits(uint64_t(b * length + l)) % uint32_t(o.vocab_size - 3));
        labels.push_back(l >= words ? 0 : l == words - 1 ? 1 : word);
      }
    }
  }
  models::HostBatch host(int64_t examples, int64_t first = 0) const {
    return {.features = {{"image", device::view(image.data(), int64_t(image.size()))},
                         {"labels", device::view(labels.data(), int64_t(labels.size()))}},
            .examples = examples,
            .first_position = first};
  }
};

// Sums over the examples of a slice or of a pass, by models::Cappa::Column.
using Sums = std::array<double, models::Cappa::Sums::count>;

class World {
 public:
  World(const models::CappaOptions& options, int64_t batch, int64_t slices = 1,
        models::MemoryOptions memory = {}, device::DType operands = device::DType::f32)
      : model(options, memory),
        stores(model.parameters(), model.blocks(),
               {.batch = batch, .slices = slices, .operands = operands}),
        inputs(stores.make_inputs(model.inputs())),
        sums_(size_t(slices)) {
    stores.make_arena_for([&](nn::Context& train, nn::Context& forward) {
      train_->run(train, inputs, batch, sums());
      score_->plan(forward, inputs);
    });
  }

  void set(const std::string& path, const Floats& values) {
    View v = weight(path);
    ASSERT_EQ(v.count, int64_t(values.size())) << path;
    std::copy(values.begin(), values.end(), v.f32());
  }
  View weight(const std::string& path) { return stores.weight(path); }
  View gradient(const std::string& path) const { return stores.gradient(path); }
  // Replaces the initial values, so that no gradient vanishes. `of_head`: the noise of the head.
  void shake(uint64_t seed, const std::string& name, double of_head) {
    stores.shake(seed, name, [&](const std::string& path) {
      return path == "decoder/LogitsDense/kernel" ? of_head : 0.1;
    });
  }
  // Places a batch with these draws, or with those of (train, stream).
  template <class... Draws>
  void prepare(const models::HostBatch& batch, const Draws&... draws) {
    one_rank::copy_fields(batch, model.inputs(), inputs);
    model.prepare(batch, draws..., inputs);
  }
  // Computes the gradients of the mean loss over the batch, and returns the sums over all slices.
  Sums forward_backward() {
    stores.train([&](nn::Context& ctx) { train_->run(ctx, inputs, ctx.batch, sums()); });
    Sums all{};
    for (const Sums& of_slice : sums_)
      for (size_t i = 0; i < all.size(); ++i) all[i] += of_slice[i];
    return all;
  }
  void evaluate(double* nll, double* weight) {
    nn::Context ctx = stores.context(false);
    score_->run(ctx, inputs, nll, weight);
  }
  // Scores all images of the inputs against all texts: [batch, texts]. An arena of its own has the
  // size that the pass plans.
  std::vector<double> pair_scores(const models::TextList& texts) {
    const std::unique_ptr<models::PairScorePass> pass = model.make_pair_score_pass();
    std::vector<double> scores(size_t(stores.batch() * texts.count()), NAN);
    run(*pass, [&](nn::Context& ctx) { pass->run(ctx, inputs, texts, scores.data()); });
    return scores;
  }
  Floats logits() {
    Floats out(size_t(stores.batch() * model.options().length() * model.options().vocab_size));
    nn::Context ctx = stores.context(false);
    model.logits(ctx, inputs, device::view(out.data(), int64_t(out.size())), state_);
    return out;
  }

  // Embeds the images of the inputs; returns the features by tap.
  std::vector<Floats> embed(const std::vector<std::string>& taps) {
    const std::unique_ptr<models::EmbedPass> pass = model.make_embed_pass(taps);
    std::vector<Floats> out;
    std::vector<float*> places;
    for (const models::Tap& tap : pass->taps())
      out.emplace_back(size_t(stores.batch() * tap.count()));
    for (Floats& of_tap : out) places.push_back(of_tap.data());
    nn::Context ctx = stores.context(false);
    const device::Queue::RowsAlike alike(ctx.queue);  // as evaluations run
    pass->run(ctx, inputs, places);
    return out;
  }

  // Calls work(ctx) with a context whose arena has the size that `pass` plans.
  template <class Work>
  void run(models::ForwardPass& pass, const Work& work) {
    stores.run_planned([&](nn::Context& ctx) { pass.plan(ctx, inputs); }, work);
  }

  models::Cappa model;
  one_rank::Stores stores;

 private:
  View sums() {
    return {sums_.data(), device::DType::f64, int64_t(sums_.size()) * models::Cappa::Sums::count};
  }
  std::unique_ptr<models::TrainPass> train_ = model.make_train_pass();
  std::unique_ptr<models::ScorePass> score_ = model.make_score_pass();
  models::Cappa::State state_;

 public:
  models::Inputs inputs;

 private:
  std::vector<Sums> sums_;  // by slice
};

}  // namespace rig
