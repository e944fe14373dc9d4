// SPDX-License-Identifier: Apache-2.0
// Tests the features that models give at their taps, against each other and against formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "rig.hpp"

namespace {

using rig::Floats;

// Names of all taps of the small model: 2 blocks, 4 tokens, width 24.
const std::vector<std::string> kAllTaps = {"pre_logits",   "encoded", "block00",
                                           "block00_mean", "block01", "block01_mean"};
constexpr int64_t kTokens = 4, kWidth = 24;

std::vector<Floats> embedded(int64_t batch, int64_t first, const std::vector<std::string>& taps) {
  const models::CappaOptions options = rig::small_options();
  rig::World world(options, batch);
  world.stores.weights.initialise(5);
  // Moves the norm away from scale 1 and bias 0.
  for (const char* name : {"scale", "bias"}) {
    device::View w = world.weight(std::string("encoder/Transformer/encoder_norm/") + name);
    for (int64_t i = 0; i < w.count; ++i) w.f32()[i] += 0.1f * float(i % 7);
  }
  const rig::MadeBatch all(options, 8);
  models::HostBatch host = all.host(batch);
  host.features["image"] = host.features["image"].slice(first * 16 * 16 * 3, batch * 16 * 16 * 3);
  one_rank::copy_fields(host, world.model.make_embed_pass(taps)->inputs(), world.inputs);
  return world.embed(taps);
}

Floats mean_of(const Floats& tokens, int64_t batch) {
  Floats out;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < kWidth; ++i) {
      double sum = 0;
      for (int64_t t = 0; t < kTokens; ++t)
        sum += double(tokens[size_t((b * kTokens + t) * kWidth + i)]);
      out.push_back(float(sum / kTokens));
    }
  return out;
}

void expect_near(const Floats& got, const Floats& want, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(double(got[i]), double(want[i]), tolerance) << what << ", element " << i;
}

TEST(Embedder, TapsAreThoseOfTheEncoder) {
  const models::Cappa model(rig::small_options(), {});
  std::vector<std::string> names;
  for (const models::Tap& tap : model.taps()) {
    names.push_back(tap.name);
    const bool vector = tap.name == "pre_logits" || tap.name.ends_with("_mean");
    EXPECT_EQ(tap.shape,
              vector ? std::vector<int64_t>{kWidth} : (std::vector<int64_t>{kTokens, kWidth}))
        << tap.name;
    EXPECT_EQ(tap.count(), vector ? kWidth : kTokens * kWidth);
  }
  EXPECT_EQ(names, kAllTaps);
}

// cappa.md 1.4: pre_logits is the mean over the tokens of encoded, which is the layer norm of the
// last block's output.
TEST(Embedder, TapsFollowFromEachOther) {
  const int64_t batch = 3;
  const std::vector<Floats> f = embedded(batch, 0, kAllTaps);
  const Floats &encoded = f[1], &last = f[4];
  expect_near(f[0], mean_of(encoded, batch), 1e-6, "pre_logits");
  expect_near(f[3], mean_of(f[2], batch), 1e-6, "block00_mean");
  expect_near(f[5], mean_of(last, batch), 1e-6, "block01_mean");
  Floats normalised;
  for (size_t row = 0; row < size_t(batch * kTokens); ++row) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < kWidth; ++i) {
      const double x = double(last[row * kWidth + i]);
      sum += x / kWidth;
      squares += x * x / kWidth;
    }
    for (size_t i = 0; i < kWidth; ++i) {
      const double shift = double(0.1f * float(i % 7));
      normalised.push_back(float((double(last[row * kWidth + i]) - sum) /
                                     std::sqrt(squares - sum * sum + 1e-6) * (1 + shift) +
                                 shift));
    }
  }
  expect_near(encoded, normalised, 1e-5, "encoded");
  EXPECT_NE(f[2], last) << "the blocks differ";
}

// The features of an image depend on this image alone.
TEST(Embedder, BatchesAndTapsDoNotChangeTheBits) {
  const std::vector<Floats> all = embedded(8, 0, kAllTaps);
  for (int64_t batch : {1, 2, 4})
    for (size_t t = 0; t < kAllTaps.size(); ++t) {
      const std::vector<Floats> some = embedded(batch, 3, {kAllTaps[t]});
      ASSERT_EQ(some.size(), 1u);
      const size_t count = some[0].size() / size_t(batch);
      EXPECT_EQ(std::memcmp(some[0].data(), all[t].data() + 3 * count, some[0].size() * 4), 0)
          << kAllTaps[t] << ", batch " << batch;
    }
}

TEST(Embedder, APassIsNamedByItsTaps) {
  const models::Cappa model(rig::small_options(), {});
  EXPECT_EQ(model.make_embed_pass({"encoded"})->name(), "embed(encoded)");
  EXPECT_EQ(model.make_embed_pass({"block01", "encoded"})->name(), "embed(block01, encoded)");
  const std::vector<models::InputSpec> inputs = model.make_embed_pass({"encoded"})->inputs();
  ASSERT_EQ(inputs.size(), 1u) << "images only";
  EXPECT_EQ(inputs[0].name, "image");
  EXPECT_EQ(inputs[0].per_example, 16 * 16 * 3);
}

TEST(Embedder, AWrongTapIsRefusedWithTheNearestName) {
  const models::Cappa model(rig::small_options(), {});
  try {
    model.make_embed_pass({"encodd"});
    ADD_FAILURE() << "the tap was accepted";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::Exit::config);
    for (const char* part : {"encodd", "did you mean \"encoded\"", "block01_mean"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

}  // namespace
