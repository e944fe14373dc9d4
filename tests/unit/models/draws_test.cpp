// SPDX-License-Identifier: Apache-2.0
// Tests the choice of examples with parallel prediction, the decoder's input, and the weights of
// the loss (cappa.md 1.6, 3).
#include <gtest/gtest.h>

#include <cmath>

#include "rig.hpp"

namespace {

using Draws = models::Cappa::Draws;

models::Cappa model_with(double prob, double ratio, int64_t length = 9) {
  models::CappaOptions o = rig::small_options();
  o.masked_pred_prob = prob;
  o.masking_ratio = ratio;
  o.seq_len = length;
  return models::Cappa(o, {});
}
const base::Stream kStream = base::Stream(12, "draws").sub(1);

TEST(Draws, ShareOfParallelExamples) {
  const int64_t n = 20000;
  for (double prob : {0.25, 0.75, 1.0}) {
    models::Cappa model = model_with(prob, 1);
    std::vector<int32_t> labels(size_t(n * 9), 5);
    Draws d = model.draw(labels.data(), n, 0, true, kStream);
    double parallel = 0;
    for (uint8_t p : d.parallel) parallel += p;
    EXPECT_NEAR(parallel / double(n), prob, 4 * std::sqrt(prob * (1 - prob) / double(n)) + 1e-12);
    d = model.draw(labels.data(), n, 0, false, kStream);
    for (uint8_t p : d.parallel) ASSERT_EQ(p, 0) << "evaluation is autoregressive";
  }
}

// Rows of the tokens of n images: so many of each, ascending, all tokens equally often, and the
// same at a position whatever the batch is.
TEST(Draws, KeptTokens) {
  models::CappaOptions o = rig::small_options();
  o.image_size = 40;  // 25 tokens
  o.keep_ratio = 0.3;
  const models::Cappa model(o, {});
  const int64_t n = 4000, kept = 8;
  ASSERT_EQ(model.kept_tokens(), kept);
  const std::vector<int32_t> labels(size_t(n * 9), 5);
  const Draws d = model.draw(labels.data(), n, 0, true, kStream);
  ASSERT_EQ(int64_t(d.kept.size()), n * kept);
  std::vector<int64_t> hits(25, 0);
  for (int64_t b = 0; b < n; ++b)
    for (int64_t k = 0; k < kept; ++k) {
      const int32_t row = d.kept[size_t(b * kept + k)];
      ASSERT_EQ(row / 25, b);
      if (k > 0) {
        ASSERT_GT(row, d.kept[size_t(b * kept + k - 1)]);
      }
      ++hits[size_t(row % 25)];
    }
  const double share = 8.0 / 25, expected = share * double(n);
  for (const int64_t hit : hits)
    EXPECT_NEAR(double(hit), expected, 5 * std::sqrt(expected * (1 - share)));
  const Draws part = model.draw(labels.data(), 1, 70, true, kStream);
  for (int64_t k = 0; k < kept; ++k)
    EXPECT_EQ(part.kept[size_t(k)], d.kept[size_t(70 * kept + k)] - 70 * 25);
  EXPECT_TRUE(model_with(0.5, 1).draw(labels.data(), n, 0, true, kStream).kept.empty());
}

TEST(Draws, IdsOfBothKinds) {
  const int64_t n = 400, length = 9;
  for (double ratio : {1.0, 0.7, 0.3, 0.05}) {
    models::Cappa model = model_with(0.5, ratio);
    rig::MadeBatch batch(rig::small_options(), n);
    Draws d = model.draw(batch.labels.data(), n, 0, true, kStream);
    const auto masked = int64_t(ratio * double(length));  // truncated
    std::vector<int64_t> hits(size_t(length), 0);
    int64_t parallel = 0;
    for (int64_t b = 0; b < n; ++b) {
      const int32_t *label = batch.labels.data() + b * length,
                    *id = d.decoder_ids.data() + b * length;
      if (!d.parallel[size_t(b)]) {
        EXPECT_EQ(id[0], 0);
        for (int64_t l = 1; l < length; ++l) ASSERT_EQ(id[l], label[l - 1]);
        continue;
      }
      ++parallel;
      int64_t count = 0;
      for (int64_t l = 0; l < length; ++l) {
        if (id[l] == 61) {
          ++count;
          ++hits[size_t(l)];
        } else
          ASSERT_EQ(id[l], label[l]) << "an unmasked id must be the label";
      }
      ASSERT_EQ(count, masked);
    }
    // Every position has the same chance to be masked.
    const double share = double(masked) / double(length);
    for (int64_t h : hits)
      EXPECT_NEAR(double(h) / double(parallel), share,
                  4.5 * std::sqrt(share * (1 - share) / double(parallel)) + 1e-12);
  }
}

// A draw is a pure function of (stream, position): no cut of the batch changes it, and no step
// repeats another's.
TEST(Draws, DoNotDependOnWhoDraws) {
  const int64_t n = 48, length = 9;
  models::Cappa model = model_with(0.5, 0.5);
  rig::MadeBatch batch(rig::small_options(), n);
  Draws whole = model.draw(batch.labels.data(), n, 96, true, kStream);
  for (int64_t parts : {2, 3, 4, 48}) {
    int64_t each = n / parts;
    for (int64_t first = 0; first < n; first += each) {
      Draws part =
          model.draw(batch.labels.data() + first * length, each, 96 + first, true, kStream);
      EXPECT_TRUE(
          std::equal(part.parallel.begin(), part.parallel.end(), whole.parallel.begin() + first));
      EXPECT_TRUE(std::equal(part.decoder_ids.begin(), part.decoder_ids.end(),
                             whole.decoder_ids.begin() + first * length));
    }
  }
  EXPECT_NE(whole.parallel,
            model.draw(batch.labels.data(), n, 96, true, base::Stream(12, "draws").sub(2)).parallel)
      << "step";
  EXPECT_NE(whole.parallel, model.draw(batch.labels.data(), n, 144, true, kStream).parallel)
      << "position";
  EXPECT_NE(whole.parallel,
            model.draw(batch.labels.data(), n, 96, true, base::Stream(13, "draws").sub(1)).parallel)
      << "seed";
}

TEST(Prepare, WeightsAndFlags) {
  models::CappaOptions o = rig::small_options();
  o.pad_id = 2;
  rig::World world(o, 3);
  rig::MadeBatch batch(o, 3);
  batch.labels = {5, 2, 0, 1, 2, 2, 2, 2, 2, 9, 8, 7, 6, 5, 4, 3, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2};
  rig::Floats masks(27, 1);
  masks[0] = 0;
  masks[10] = 0.5f;
  models::HostBatch host = batch.host(3);
  host.features["label_masks"] = device::view(masks.data(), 27);
  Draws recorded{{1, 0, 1}, std::vector<int32_t>(27, 61), {}};
  world.prepare(host, recorded);
  for (size_t i = 0; i < 27; ++i) {
    EXPECT_EQ(world.inputs.at("weights").host.f32()[i], batch.labels[i] == 2 ? 0 : masks[i]) << i;
    EXPECT_EQ(world.inputs.at("decoder_ids").host.i32()[i], 61);
  }
  for (size_t b = 0; b < 3; ++b) EXPECT_EQ(world.inputs.at("causal").host.u8()[b], b == 1);
  world.prepare(host, false, base::Stream());
  for (size_t b = 0; b < 3; ++b) {
    EXPECT_EQ(world.inputs.at("causal").host.u8()[b], 1);
    EXPECT_EQ(world.inputs.at("decoder_ids").host.i32()[b * 9], 0)
        << "the leading id is 0, whatever the pad id";
  }
}

TEST(Prepare, LabelsOutsideTheVocabulary) {
  models::CappaOptions o = rig::small_options();
  rig::World world(o, 2);
  rig::MadeBatch batch(o, 2);
  for (int32_t bad : {-1, 61}) {
    batch.labels[12] = bad;
    try {
      world.prepare(batch.host(2, 70), true, base::Stream());
      FAIL() << bad;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::data);
      EXPECT_NE(std::string(e.what()).find("position 71"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
