// SPDX-License-Identifier: Apache-2.0
// Tests captions of a whole model: decoding with caches against the published code and against the
// model's own forward pass over all tokens so far.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "models/decoders/caption_attention.hpp"
#include "rig.hpp"
#include "tests/golden_runner/decode_pass.hpp"
#include "tests/unit/optim/golden_file.hpp"

namespace {

using models::Caption;
using models::DecodeMethod;
using models::DecodeOptions;

void disturb(rig::World& world, uint64_t seed) { world.shake(seed, "disturb", 0.5); }

std::vector<Caption> captions(rig::World& world, const DecodeOptions& options,
                              const models::HostBatch& batch, int64_t examples, int64_t first = 0) {
  auto pass = world.model.make_caption_pass(
      {.places = options.places(), .attention = options.attention > 0});
  one_rank::copy_fields(batch, pass->inputs(), world.inputs);
  std::vector<Caption> out;
  world.run(*pass,
            [&](nn::Context& ctx) { pass->run(ctx, world.inputs, options, examples, first, out); });
  return out;
}

// Returns logits [batch, length, vocabulary] of the model over whole texts.
rig::Floats logits_of(rig::World& world, const models::HostBatch& images, const rig::Ints& labels) {
  models::HostBatch batch = images;
  batch.features["labels"] = device::view(labels.data(), int64_t(labels.size()));
  world.prepare(batch, false, base::Stream());
  return world.logits();
}

double log_likelihood(const float* logits, int64_t vocabulary, int32_t id) {
  double sum = 0;
  for (int64_t i = 0; i < vocabulary; ++i) sum += std::exp(double(logits[i]));
  return double(logits[id]) - std::log(sum);
}

// Generates greedily without caches: each token needs a pass over all tokens so far.
std::vector<Caption> without_caches(rig::World& world, const models::HostBatch& images) {
  const int64_t n = images.examples, length = world.model.options().length(),
                vocabulary = world.model.options().vocab_size;
  rig::Ints labels(size_t(n * length), 2);
  std::vector<Caption> out(static_cast<size_t>(n));
  for (int64_t t = 0; t < length; ++t) {
    const rig::Floats logits = logits_of(world, images, labels);
    for (int64_t b = 0; b < n; ++b) {
      Caption& c = out[size_t(b)];
      if (c.ended) continue;
      const float* x = logits.data() + (b * length + t) * vocabulary;
      const auto id = int32_t(std::max_element(x, x + vocabulary) - x);
      c.log_likelihood += log_likelihood(x, vocabulary, id);
      c.ended = id == 1;
      if (!c.ended) c.ids.push_back(id);
      labels[size_t(b * length + t)] = id;
    }
  }
  return out;
}

TEST(Captions, AreThoseWithoutCaches) {
  size_t ended = 0, cut = 0;
  for (double masked : {0.0, 0.5})
    for (bool learned : {true, false})
      for (uint64_t seed : {1, 2, 3}) {
        models::CappaOptions o = rig::small_options();
        o.masked_pred_prob = masked;
        o.learned_positions = learned;
        rig::World world(o, 6);
        disturb(world, seed);
        const device::View end = world.weight("decoder/LogitsDense/bias");
        end.f32()[1] += 1.5f;  // so that some captions end
        rig::MadeBatch batch(o, 6, seed);
        const auto want = without_caches(world, batch.host(6)),
                   got = captions(world, {}, batch.host(6), 6);
        ASSERT_EQ(got.size(), 6);
        for (size_t b = 0; b < 6; ++b) {
          EXPECT_EQ(got[b].ids, want[b].ids) << b;
          EXPECT_EQ(got[b].ended, want[b].ended);
          EXPECT_NEAR(got[b].log_likelihood, want[b].log_likelihood, 1e-4);
          (got[b].ended ? ended : cut) += 1;
        }
      }
  EXPECT_GT(ended, 5);
  EXPECT_GT(cut, 5);
}

// With bf16 operands both ways round the same values, up to the order of sums.
TEST(Captions, HaveTheLikelihoodOfTheModelInBf16) {
  const models::CappaOptions o = rig::small_options();
  rig::World world(o, 6, 1, {}, device::DType::bf16);
  disturb(world, 4);
  rig::MadeBatch batch(o, 6);
  const int64_t length = o.length();
  for (const DecodeOptions& options :
       {DecodeOptions{}, DecodeOptions{.method = DecodeMethod::beam, .beams = 3}}) {
    const auto got = captions(world, options, batch.host(6), 6);
    rig::Ints labels(size_t(6 * length), 1);
    for (size_t b = 0; b < 6; ++b)
      std::copy(got[b].ids.begin(), got[b].ids.end(), labels.begin() + int64_t(b) * length);
    const rig::Floats logits = logits_of(world, batch.host(6), labels);
    for (size_t b = 0; b < 6; ++b) {
      double want = 0;
      for (size_t t = 0; t < got[b].ids.size() + got[b].ended; ++t)
        want += log_likelihood(logits.data() + (b * size_t(length) + t) * 61, 61,
                               labels[b * size_t(length) + t]);
      EXPECT_NEAR(got[b].log_likelihood, want, 0.01 * std::abs(want));
    }
  }
}

TEST(Captions, OfABeamScoreAsTheModelDoes) {
  const models::CappaOptions o = rig::small_options();
  rig::World world(o, 4);
  int better = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    disturb(world, seed);
    rig::MadeBatch batch(o, 4, seed);
    const auto greedy = captions(world, {}, batch.host(4), 4);
    const DecodeOptions one{.method = DecodeMethod::beam, .beams = 1};
    const auto beam1 = captions(world, one, batch.host(4), 4);
    for (double penalty : {0.0, 0.8}) {
      const DecodeOptions four{.method = DecodeMethod::beam, .beams = 4, .length_penalty = penalty};
      const auto beam = captions(world, four, batch.host(4), 4);
      const int64_t length = o.length();
      rig::Ints labels(size_t(4 * length), 1);
      for (size_t b = 0; b < 4; ++b)
        std::copy(beam[b].ids.begin(), beam[b].ids.end(), labels.begin() + int64_t(b) * length);
      const rig::Floats logits = logits_of(world, batch.host(4), labels);
      for (size_t b = 0; b < 4; ++b) {
        EXPECT_EQ(beam1[b].ids, greedy[b].ids);
        EXPECT_EQ(beam1[b].log_likelihood, greedy[b].log_likelihood);
        double want = 0;
        for (size_t t = 0; t < beam[b].ids.size() + beam[b].ended; ++t)
          want += log_likelihood(logits.data() + (b * size_t(length) + t) * 61, 61,
                                 labels[b * size_t(length) + t]);
        EXPECT_NEAR(beam[b].log_likelihood, want, 1e-4) << "beams share the past by index";
        auto score = [&](const Caption& c) {
          return c.log_likelihood / std::pow((5 + double(c.ids.size()) + c.ended) / 6, penalty);
        };
        EXPECT_GE(score(beam[b]), score(greedy[b]));
        better += score(beam[b]) > score(greedy[b]) + 1e-4;
      }
    }
  }
  EXPECT_GT(better, 8);
}

// Other captions of the batch, their number and their ends change no bit of an image's caption.
TEST(Captions, DependOnTheirImageAlone) {
  const models::CappaOptions o = rig::small_options();
  const int64_t pixels = o.height() * o.width() * 3;
  rig::World world(o, 6);
  disturb(world, 8);
  world.weight("decoder/LogitsDense/bias").f32()[1] += 1.0f;
  for (const DecodeOptions& options :
       {DecodeOptions{}, DecodeOptions{.method = DecodeMethod::beam, .beams = 3},
        DecodeOptions{.method = DecodeMethod::sample, .seed = 2}}) {
    rig::MadeBatch batch(o, 6, 1), others(o, 6, 2);
    const auto all = captions(world, options, batch.host(6), 6);
    std::copy_n(batch.image.begin() + pixels, pixels, others.image.begin() + pixels);
    const auto beside = captions(world, options, others.host(6), 6),
               few = captions(world, options, batch.host(6), 2),
               none = captions(world, options, batch.host(6), 0);
    for (const auto* got : {&beside, &few}) {
      EXPECT_EQ((*got)[1].ids, all[1].ids);
      EXPECT_EQ((*got)[1].log_likelihood, all[1].log_likelihood);
    }
    EXPECT_NE(beside[0].log_likelihood, all[0].log_likelihood);
    EXPECT_TRUE(none.empty());
  }
}

TEST(Captions, EndAtTheirLargestLength) {
  const models::CappaOptions o = rig::small_options();
  rig::World world(o, 3);
  disturb(world, 8);
  world.weight("decoder/LogitsDense/bias").f32()[1] -= 100;  // none ends by itself
  const rig::MadeBatch batch(o, 3);
  const auto whole = captions(world, {}, batch.host(3), 3),
             part = captions(world, {.max_length = 4}, batch.host(3), 3);
  for (size_t b = 0; b < 3; ++b) {
    ASSERT_EQ(whole[b].ids.size(), 9);
    ASSERT_EQ(part[b].ids.size(), 4);
    EXPECT_TRUE(std::equal(part[b].ids.begin(), part[b].ids.end(), whole[b].ids.begin()));
    EXPECT_FALSE(whole[b].ended || part[b].ended);
  }
}

// Weights of two heads of size 1, and of one head of size 4, in closed form.
TEST(Captions, AttentionIsASoftmaxOfEachHead) {
  const float l = std::log(3.0f);
  auto near = [](const std::vector<float>& got, const std::vector<float>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
  };
  near(models::mean_attention(rig::Floats{1, 5}, rig::Floats{0, 0, l, 0}, 2), {0.375f, 0.625f});
  near(models::mean_attention(rig::Floats{1, 1, 1, 1},
                              rig::Floats{0, 0, 0, 0, l / 2, l / 2, l / 2, l / 2}, 1),
       {0.25f, 0.75f});
}

TEST(Captions, AttendToTheirImage) {
  const models::CappaOptions o = rig::small_options();
  rig::World world(o, 6), narrow(o, 6, 1, {}, device::DType::bf16);
  const size_t patches = 4;
  size_t shared = 0, lengths = 0;
  for (uint64_t seed : {1, 2, 3}) {
    const rig::MadeBatch batch(o, 6, seed);
    for (rig::World* w : {&world, &narrow}) {
      disturb(*w, seed);
      w->weight("decoder/LogitsDense/bias").f32()[1] += 1.5f;
    }
    const auto plain = captions(world, {}, batch.host(6), 6),
               greedy = captions(world, {.attention = 6}, batch.host(6), 6),
               beam = captions(world, {.method = DecodeMethod::beam, .beams = 3, .attention = 6},
                               batch.host(6), 6),
               few = captions(world, {.attention = 12}, batch.host(6), 6, 10),
               rounded = captions(narrow, {.attention = 6}, batch.host(6), 6);
    std::set<size_t> found;
    for (size_t b = 0; b < 6; ++b) {
      EXPECT_TRUE(plain[b].attention.empty());
      EXPECT_EQ(plain[b].ids, greedy[b].ids);
      EXPECT_EQ(plain[b].log_likelihood, greedy[b].log_likelihood);
      EXPECT_EQ(few[b].attention, b < 2 ? greedy[b].attention : rig::Floats{});
      found.insert(greedy[b].ids.size());
      for (const auto* all : {&greedy, &beam, &rounded}) {
        const Caption& c = (*all)[b];
        ASSERT_EQ(c.attention.size(), c.ids.size() * patches);
        for (auto row = c.attention.begin(); row != c.attention.end(); row += patches)
          EXPECT_NEAR(std::accumulate(row, row + patches, 0.0), 1, 1e-6);
      }
      // A row depends on the image and the ids before it.
      for (size_t t = 0; t < std::min(greedy[b].ids.size(), beam[b].ids.size()); ++t) {
        for (size_t i = t * patches; i < (t + 1) * patches; ++i)
          EXPECT_EQ(greedy[b].attention[i], beam[b].attention[i]) << b << " " << t;
        ++shared;
        if (greedy[b].ids[t] != beam[b].ids[t]) break;
      }
      const bool compare = !greedy[b].ids.empty() && !rounded[b].ids.empty();
      for (size_t i = 0; compare && i < patches; ++i)
        EXPECT_NEAR(greedy[b].attention[i], rounded[b].attention[i], 0.01);
    }
    lengths = std::max(lengths, found.size());
  }
  EXPECT_GT(lengths, 2u);  // captions leave the batch at different steps
  EXPECT_GT(shared, 20u);
}

// Compares logits and caches of the tokens that predict.h5 feeds.
TEST(Captions, DecodeAsThePublishedCode) {
  golden::File parameters("case_ar.h5"), expected("predict.h5");
  models::CappaOptions o;
  o.image_height = 24;
  o.image_width = 16;
  o.vocab_size = 37;
  o.seq_len = 7;
  o.masked_pred_prob = 0;
  o.encoder = {.variant = "", .patch = 8, .depth = 2, .width = 24, .mlp = 40, .heads = 3};
  o.decoder = {.depth = 2, .bias = true};
  rig::World world(o, 3);
  for (const shard::Parameter& p : world.stores.layout.parameters())
    world.set(p.path, parameters.floats("params_init/" + p.path));
  const rig::Floats image = parameters.floats("batch/image"),
                    tokens = expected.floats("decode/tokens"),
                    logits = expected.floats("decode/logits");
  std::copy_n(image.begin(), world.inputs.at("image").host.count,
              world.inputs.at("image").host.f32());
  golden::DecodePass pass(world.model, 3);
  world.run(pass, [&](nn::Context& ctx) {
    const auto got = pass.run(ctx, world.inputs, {tokens.begin(), tokens.end()});
    ASSERT_EQ(got.logits.size(), logits.size());
    for (size_t i = 0; i < logits.size(); ++i)
      EXPECT_NEAR(got.logits[i], logits[i], expected.number("decode/logits", "tol")) << i;
    for (size_t layer = 0; layer < 2; ++layer)
      for (bool keys : {true, false}) {
        const std::string set = "decode/cache/decoder/EncDecBlock" + std::to_string(layer) +
                                (keys ? "/SelfAttn/cached_key" : "/SelfAttn/cached_value");
        const rig::Floats want =
            expected.floats(set);  // [3, 7, 24]; the first 3 positions are used
        const double tolerance = expected.number(set, "tol");
        const rig::Floats& mine = keys ? got.k[layer] : got.v[layer];
        for (size_t b = 0; b < 3; ++b)
          for (size_t i = 0; i < 3 * 24; ++i)
            EXPECT_NEAR(mine[b * 72 + i], want[b * 7 * 24 + i], tolerance) << set;
      }
  });
}

}  // namespace
