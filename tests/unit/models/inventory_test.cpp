// SPDX-License-Identifier: Apache-2.0
// Tests names, shapes, initial distributions and totals of the parameters (cappa.md 1.7, 1.8).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "rig.hpp"
#include "shard/initialise.hpp"

namespace {

using Shape = std::vector<int64_t>;
using Kind = shard::Init::Kind;

struct Expected {
  Shape shape;
  Kind kind;
  double scale = 0;  // normal: standard deviation; truncated normal: of its fan; uniform: limit
};

// B/16 at 224 pixels, 64 tokens, 6 decoder layers, written out from cappa.md 1.7.
std::map<std::string, Expected> inventory(bool masked, bool decoder_bias) {
  const int64_t e = 768, m = 3072, heads = 12, d = 64;
  const double xavier = 0.0625, xavier_mlp = std::sqrt(6.0 / 3840), lecun = 1 / std::sqrt(768.0),
               position = 1 / std::sqrt(768.0);
  std::map<std::string, Expected> all;
  all["encoder/embedding/kernel"] = {{16, 16, 3, e}, Kind::lecun_normal, lecun};
  all["encoder/embedding/bias"] = {{e}, Kind::zeros};
  all["encoder/pos_embedding"] = {{1, 196, e}, Kind::normal, position};
  for (int i = 0; i < 12; ++i) {
    const std::string block = "encoder/Transformer/encoderblock_" + std::to_string(i) + "/";
    for (const char* norm : {"LayerNorm_0", "LayerNorm_1"}) {
      all[block + norm + "/scale"] = {{e}, Kind::ones};
      all[block + norm + "/bias"] = {{e}, Kind::zeros};
    }
    const std::string attention = block + "MultiHeadDotProductAttention_0/";
    for (const char* name : {"query", "key", "value"}) {
      all[attention + name + "/kernel"] = {{e, heads, d}, Kind::xavier_uniform, xavier};
      all[attention + name + "/bias"] = {{heads, d}, Kind::zeros};
    }
    all[attention + "out/kernel"] = {{heads, d, e}, Kind::xavier_uniform, xavier};
    all[attention + "out/bias"] = {{e}, Kind::zeros};
    all[block + "MlpBlock_0/Dense_0/kernel"] = {{e, m}, Kind::xavier_uniform, xavier_mlp};
    all[block + "MlpBlock_0/Dense_0/bias"] = {{m}, Kind::normal, 1e-6};
    all[block + "MlpBlock_0/Dense_1/kernel"] = {{m, e}, Kind::xavier_uniform, xavier_mlp};
    all[block + "MlpBlock_0/Dense_1/bias"] = {{e}, Kind::normal, 1e-6};
  }
  all["encoder/Transformer/encoder_norm/scale"] = {{e}, Kind::ones};
  all["encoder/Transformer/encoder_norm/bias"] = {{e}, Kind::zeros};
  all["pos_embedding_decoder"] = {{1, 64, e}, Kind::normal, position};
  all["decoder/EmbedTargets/embedding"] = {{masked ? 32001 : 32000, e}, Kind::normal, 1};
  for (int i = 0; i < 6; ++i) {
    const std::string block = "decoder/EncDecBlock" + std::to_string(i) + "/";
    for (const char* norm : {"LayerNorm1", "LayerNorm2", "LayerNorm3"}) {
      all[block + norm + "/scale"] = {{e}, Kind::ones};
      if (decoder_bias) all[block + norm + "/bias"] = {{e}, Kind::zeros};
    }
    for (const char* attention : {"SelfAttn/", "CrossAttn/"}) {
      for (const char* name : {"query", "key", "value"})
        all[block + attention + name + "/kernel"] = {{e, heads, d}, Kind::lecun_normal, lecun};
      all[block + attention + "out/kernel"] = {{heads, d, e}, Kind::lecun_normal, lecun};
    }
    all[block + "MLP/Dense_0/kernel"] = {{e, m}, Kind::xavier_uniform, xavier_mlp};
    all[block + "MLP/Dense_1/kernel"] = {{m, e}, Kind::xavier_uniform, xavier_mlp};
    if (decoder_bias) all[block + "MLP/Dense_0/bias"] = {{m}, Kind::normal, 1e-6};
    if (decoder_bias) all[block + "MLP/Dense_1/bias"] = {{e}, Kind::normal, 1e-6};
  }
  all["decoder/LayerNorm/scale"] = {{e}, Kind::ones};
  all["decoder/LayerNorm/bias"] = {{e}, Kind::zeros};
  all["decoder/LogitsDense/kernel"] = {{e, 32000}, Kind::zeros};
  all["decoder/LogitsDense/bias"] = {{32000}, Kind::zeros};
  return all;
}

std::vector<shard::Parameter> parameters_of(const models::CappaOptions& options) {
  return models::Cappa(options, {}).parameters();
}
int64_t total(const std::vector<shard::Parameter>& parameters, const std::string& prefix = "") {
  int64_t sum = 0;
  for (const shard::Parameter& p : parameters) sum += p.path.starts_with(prefix) ? p.count() : 0;
  return sum;
}
models::CappaOptions b16(bool masked = true, bool decoder_bias = false) {
  models::CappaOptions o;
  o.masked_pred_prob = masked ? 0.75 : 0;
  o.decoder.bias = decoder_bias;
  return o;
}

double scale_of(const shard::Init& init) {
  switch (init.kind) {
    case Kind::normal:
      return init.std;
    case Kind::lecun_normal:
      return 1 / std::sqrt(double(init.fan_in));
    case Kind::xavier_uniform:
      return std::sqrt(6.0 / double(init.fan_in + init.fan_out));
    default:
      return 0;
  }
}

TEST(Inventory, NamesShapesAndDistributionsOfB16) {
  for (bool masked : {true, false})
    for (bool bias : {false, true}) {
      std::map<std::string, Expected> expected = inventory(masked, bias);
      std::set<std::string> seen;
      for (const shard::Parameter& p : parameters_of(b16(masked, bias))) {
        ASSERT_TRUE(expected.count(p.path)) << p.path << " is not in the published model";
        EXPECT_TRUE(seen.insert(p.path).second) << p.path << " twice";
        const Expected& e = expected[p.path];
        EXPECT_EQ(p.shape, e.shape) << p.path;
        EXPECT_EQ(p.init.kind, e.kind) << p.path;
        EXPECT_NEAR(scale_of(p.init), e.scale, 1e-9) << p.path;
      }
      EXPECT_EQ(seen.size(), expected.size());
      EXPECT_EQ(seen.size(), bias ? 281u + 6 * 5 : 281u);
    }
}

TEST(Inventory, TotalsOfB16) {
  EXPECT_EQ(total(parameters_of(b16())), 191669504);
  EXPECT_EQ(total(parameters_of(b16(false))), 191668736) << "Cap has no mask token";
  EXPECT_EQ(total(parameters_of(b16(true, true))), 191706368) << "with decoder biases";
  EXPECT_EQ(total(parameters_of(b16()), "encoder/"), 85797120);
  EXPECT_EQ(total(parameters_of(b16()), "pos_embedding_decoder"), 49152);
  EXPECT_EQ(total(parameters_of(b16()), "decoder/"), 105823232);
  models::CappaOptions fixed = b16();
  fixed.learned_positions = false;  // tables, but no parameters
  EXPECT_EQ(total(parameters_of(fixed)), 191669504 - 196 * 768 - 64 * 768);
}

// big_vision's default decays leaves named kernel.
TEST(Inventory, KernelsOfB16) {
  int64_t leaves = 0, elements = 0;
  for (const shard::Parameter& p : parameters_of(b16()))
    if (p.path.ends_with("/kernel")) {
      ++leaves;
      elements += p.count();
    }
  EXPECT_EQ(leaves, 134);
  EXPECT_EQ(elements, 166723584);
}

// The totals follow cappa.md 1.8. The sizes come from the variant's name, as in a deck.
TEST(Inventory, TotalsOfAllVariants) {
  struct Row {
    const char* variant;
    // the encoder alone; totals with 6, 12 and `depth` decoder layers
    int64_t encoder, six, twelve, same;
    int64_t depth;
  };
  for (const Row& row :
       std::initializer_list<Row>{{"Ti/16", 5524032, 21399296, 24941696, 24941696, 12},
                                  {"S/16", 21664896, 60461312, 74624000, 74624000, 12},
                                  {"M/16", 38323712, 96333056, 121508096, 121508096, 12},
                                  {"B/16", 85797120, 191669504, 248306432, 248306432, 12},
                                  {"L/16", 303299584, 469617920, 570299648, 771663104, 24},
                                  {"L/14", 303176704, 469495040, 570176768, 771540224, 24},
                                  {"So400m/14", 412442352, 609499760, 732719984, 1040770544, 27},
                                  {"H/14", 630762240, 870109440, 1027418880, 1551783680, 32},
                                  {"g/14", 1011199616, 1300430592, 1499423232, 2428055552, 40},
                                  {"g-opt/16", 1134746112, 1459705088, 1686225152, 2743318784, 40},
                                  {"G/14", 1842772352, 2245926656, 2542441472, 4321530368, 48}}) {
    SCOPED_TRACE(row.variant);
    models::CappaOptions options;
    options.vocab_size = 0;
    std::string text =
        "vocab_size = 32000\n[encoder]\nvariant = \"" + std::string(row.variant) + "\"\n";
    config::Deck deck({.path = "test.toml", .text = text, .overrides = {}}, options);
    ASSERT_FALSE(deck.problems().any()) << deck.problems().lines.front();
    options.decoder.bias = false;
    EXPECT_EQ(options.encoder.depth, row.depth);
    EXPECT_EQ(total(parameters_of(options), "encoder/"), row.encoder);
    for (auto [layers, expected] :
         {std::pair(int64_t{6}, row.six), {int64_t{12}, row.twelve}, {row.depth, row.same}}) {
      options.decoder.depth = layers;
      EXPECT_EQ(total(parameters_of(options)), expected) << layers << " decoder layers";
    }
  }
}

// Every tensor of a model gets the distribution that it declares. The test checks means, standard
// deviations and limits of the values.
TEST(Inventory, InitialValues) {
  models::CappaOptions o;
  o.image_size = 32;
  o.vocab_size = 500;
  o.seq_len = 32;
  o.encoder = {.variant = "", .patch = 8, .depth = 1, .width = 64, .mlp = 96, .heads = 4};
  o.decoder = {.depth = 1, .width = 80, .mlp = 112, .heads = 5, .bias = true};
  auto fans = [&](const std::string& path) -> std::pair<double, double> {
    if (path == "encoder/embedding/kernel") return {8 * 8 * 3, 64};
    if (path.find("MlpBlock_0") != std::string::npos) return {64, 96};
    if (path.find("MLP") != std::string::npos) return {80, 112};
    if (path.find("MultiHead") != std::string::npos) return {64, 64};
    const bool memory = path.find("CrossAttn/key") != std::string::npos ||
                        path.find("CrossAttn/value") != std::string::npos;
    return {memory ? 64 : 80, 80};
  };
  for (const shard::Parameter& p : parameters_of(o)) {
    SCOPED_TRACE(p.path);
    const int64_t n = p.count();
    rig::Floats x(static_cast<size_t>(n));
    shard::initial_values(p, 17, 0, n, x.data());
    double mean = 0, square = 0, largest = 0;
    for (float v : x) {
      mean += double(v) / double(n);
      square += double(v) * double(v) / double(n);
      largest = std::max(largest, std::abs(double(v)));
    }
    const auto [in, out] = fans(p.path);
    double std = 0, limit = 0;
    const bool mlp =
        p.path.find("MLP/") != std::string::npos || p.path.find("MlpBlock_0/") != std::string::npos;
    if (p.path.ends_with("scale")) {
      for (float v : x) ASSERT_EQ(v, 1);
      continue;
    }
    if (p.path.ends_with("/bias") && mlp) {
      std = 1e-6;
    } else if (p.path.ends_with("/bias") || p.path.find("LogitsDense") != std::string::npos) {
      for (float v : x) ASSERT_EQ(v, 0);
      continue;
    } else if (p.path.ends_with("EmbedTargets/embedding")) {
      std = 1;
    } else if (p.path == "encoder/pos_embedding" || p.path == "pos_embedding_decoder") {
      std = 1 / std::sqrt(double(p.shape.back()));
    } else if (mlp || p.path.starts_with("encoder/Transformer")) {  // Xavier-uniform
      limit = std::sqrt(6 / (in + out));
      std = limit / std::sqrt(3.0);
    } else {  // LeCun-normal, truncated at two standard deviations of the normal
      std = 1 / std::sqrt(in);
      limit = 2 * std / 0.87962566103423978;
    }
    const double noise = std / std::sqrt(double(n));
    EXPECT_NEAR(mean, 0, 4.5 * noise);
    EXPECT_NEAR(std::sqrt(square), std, 4 * noise);
    if (limit == 0) continue;
    EXPECT_LE(largest, limit * (1 + 1e-6));
    EXPECT_GT(largest, (n > 2000 ? 0.98 : 0.9) * limit);
  }
}

}  // namespace
