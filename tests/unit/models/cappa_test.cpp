// SPDX-License-Identifier: Apache-2.0
// Tests the whole model: loss and gradients at initialisation, gradients against differences,
// packed logits, inputs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "models/trunks/convolutional/resnet.hpp"
#include "rig.hpp"

namespace {

using models::Cappa;
using rig::Floats;

void shake(rig::World& world, uint64_t seed = 5) {
  world.shake(seed, "shake", 1 / std::sqrt(20.0));
}

void prepare(rig::World& world, const rig::MadeBatch& batch, int64_t examples, bool train = true) {
  world.prepare(batch.host(examples), train, base::Stream(9, "draws"));
}

// The head starts at zero, so the loss is ln V and only the head gets a gradient (cappa.md 1.10).
TEST(Cappa, LossAndGradientsAtInitialisation) {
  for (bool masked : {true, false})
    for (bool learned : {true, false})
      for (const char* recompute : {"none", "gelu", "mlp", "block"}) {
        models::CappaOptions o = rig::small_options();
        o.masked_pred_prob = masked ? 0.75 : 0;
        o.learned_positions = learned;
        rig::World world(o, 8, 1,
                         {.recompute = base::value_of(models::kRecomputeNames, recompute)});
        world.stores.weights.initialise(4);
        rig::MadeBatch batch(o, 8);
        batch.labels.assign(batch.labels.size(), 1);  // every example has a token
        prepare(world, batch, 8);
        EXPECT_NEAR(world.forward_backward()[Cappa::Sums::loss] / 8, std::log(61.0), 1e-6);
        EXPECT_EQ(world.model.uniform_loss(), std::log(61.0));
        for (const shard::Parameter& p : world.stores.layout.parameters()) {
          device::View g = world.gradient(p.path);
          double largest = 0;
          for (int64_t i = 0; i < g.count; ++i)
            largest = std::max(largest, std::abs(double(g.f32()[i])));
          if (p.path.starts_with("decoder/LogitsDense/"))
            EXPECT_GT(largest, 1e-3) << p.path;
          else
            EXPECT_EQ(largest, 0) << p.path;
        }
      }
}

// Text rows that affect no result are not computed (text_rows.hpp): loss, gradients and evaluation
// are those of all rows.
TEST(Cappa, LeavesOutOnlyRowsThatChangeNothing) {
  for (double parallel : {0.0, 0.5, 1.0})
    for (int64_t slices : {1, 2, 4})
      for (const char* recompute : {"none", "gelu", "mlp", "block"}) {
        SCOPED_TRACE(
            fmt::format("parallel {}, {} slices, recompute {}", parallel, slices, recompute));
        models::CappaOptions o = rig::small_options();
        o.seq_len = 37;
        o.masked_pred_prob = parallel;
        rig::World some(o, 8, slices,
                        {.recompute = base::value_of(models::kRecomputeNames, recompute)});
        o.pack_text = false;
        rig::World every(o, 8, slices,
                         {.recompute = base::value_of(models::kRecomputeNames, recompute)});
        rig::MadeBatch batch(o, 8);
        shake(some);
        shake(every);
        prepare(some, batch, 8);
        prepare(every, batch, 8);
        rig::Sums a = some.forward_backward(), b = every.forward_backward();
        for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-6 * std::abs(b[i])) << i;
        double overall = 0;
        for (const shard::Parameter& p : some.stores.layout.parameters()) {
          device::View h = every.gradient(p.path);
          for (int64_t i = 0; i < h.count; ++i)
            overall = std::max(overall, std::abs(double(h.f32()[i])));
        }
        for (const shard::Parameter& p : some.stores.layout.parameters()) {
          device::View g = some.gradient(p.path), h = every.gradient(p.path);
          // The gradient of a key bias is only the rounding error of sums that are zero.
          double largest = 1e-2 * overall, worst = 0;
          for (int64_t i = 0; i < g.count; ++i) {
            largest = std::max(largest, std::abs(double(h.f32()[i])));
            worst = std::max(worst, std::abs(double(g.f32()[i]) - double(h.f32()[i])));
          }
          EXPECT_LT(worst, 5e-6 * largest) << p.path;
        }
        prepare(some, batch, 8, false);
        prepare(every, batch, 8, false);
        std::vector<double> nll[2], weight[2];
        for (auto* v : {nll, weight}) {
          v[0].resize(8);
          v[1].resize(8);
        }
        some.evaluate(nll[0].data(), weight[0].data());
        every.evaluate(nll[1].data(), weight[1].data());
        EXPECT_EQ(weight[0], weight[1]);
        for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(nll[0][i], nll[1][i], 2e-6 * nll[1][i]);
      }
}

TEST(TextRows, FillSlicesUpAndKnowTheirPlaces) {
  using Offsets = std::vector<int32_t>;
  models::TextRows all, r, few;
  all.assign_all(3, 1, 5);
  EXPECT_EQ(all.offsets, (Offsets{0, 5, 10, 15}));
  EXPECT_TRUE(all.whole());
  EXPECT_TRUE(all.sequences().offsets.none());
  r.assign({20, 3, 24, 1}, 2, 24);
  EXPECT_EQ(r.offsets, (Offsets{0, 24, 32, 56, 64}))
      << "a slice has 32 rows: 9 and 7 are added, to the first examples first";
  EXPECT_EQ(r.cuts, (std::vector<int64_t>{0, 32, 64}));
  EXPECT_FALSE(r.whole());
  few.assign({5, 4}, 1, 5);
  EXPECT_EQ(few.offsets, (Offsets{0, 5, 10})) << "an example has no more rows than positions";
  few.offsets = {0, 1, 3};
  few.cuts = {0, 3};
  Offsets index;
  models::TextRows two;
  two.assign_all(2, 1, 5);
  few.index_in(two, index);
  EXPECT_EQ(index, (Offsets{0, 5, 6}));
  r.index_in_text(index);
  EXPECT_EQ(index[24], 24);
  EXPECT_EQ(index[32], 48);
}

// For any captions, a slice has as many rows as one of the sets.
TEST(TextRows, HaveOneOfAFewSizes) {
  base::Stream draw(1, "text rows");
  for (auto [each, length] : {std::pair{8, 64}, {1, 24}, {3, 37}, {64, 64}}) {
    std::set<int64_t> sizes;
    for (int64_t set = 0; set < models::TextRows::sets(each, length); ++set) {
      models::TextRows r;
      r.assign_set(set, 2 * each, 2, length);
      sizes.insert(r.cuts[1]);
      EXPECT_EQ(r.cuts[2], 2 * r.cuts[1]);
    }
    EXPECT_LE(sizes.size(), 32u);
    EXPECT_TRUE(sizes.contains(each * length));
    for (uint64_t i = 0; i < 200; ++i) {
      std::vector<int64_t> counts;
      for (int b = 0; b < each; ++b)
        counts.push_back(1 + int64_t(draw.sub(i).bits(uint64_t(b)) % uint32_t(length)));
      models::TextRows r;
      r.assign(counts, 1, length);
      ASSERT_TRUE(sizes.contains(r.count())) << r.count() << " rows of " << each << " x " << length;
    }
  }
}

// Shakes the weights, and returns the gradients of a batch of 8 by path.
std::map<std::string, Floats> gradients_of(rig::World& world, const models::CappaOptions& o) {
  shake(world);
  prepare(world, rig::MadeBatch(o, 8), 8);
  world.forward_backward();
  std::map<std::string, Floats> gradients;
  for (const shard::Parameter& p : world.stores.layout.parameters())
    gradients[p.path] = world.stores.gradient_values(p.path);
  return gradients;
}

// The derivative along the gradient is the gradient's norm. Each tensor is checked by fourth-order
// differences.
void check_gradients(const models::CappaOptions& o) {
  rig::World world(o, 8);
  const std::map<std::string, Floats> gradients = gradients_of(world, o);
  for (const auto& [path, gradient] : gradients) {
    const double norm = one_rank::norm_of(gradient);
    if (path.ends_with("key/bias")) {
      EXPECT_LT(norm, 1e-6) << path << ": zero in exact arithmetic";
      continue;
    }
    ASSERT_GT(norm, 1e-4) << path;
    // The loss is exact to about 1e-7.
    const double slope = one_rank::slope_along(gradient, world.weight(path), 0.004, [&] {
      return world.forward_backward()[Cappa::Sums::loss] / 8;
    });
    EXPECT_NEAR(slope, norm, 2e-3 * norm + 2e-5) << path;
  }
}

TEST(Cappa, GradientsAgainstDifferences) {
  models::CappaOptions o = rig::small_options();
  o.label_smoothing = 0.1;
  check_gradients(o);
}

TEST(Cappa, GradientsWithSomeTokensAgainstDifferences) {
  models::CappaOptions o = rig::small_options();
  o.keep_ratio = 0.5;
  check_gradients(o);
}

// In training the decoder reads the kept tokens alone; evaluations read all.
TEST(Cappa, ReadsKeptTokensAlone) {
  models::CappaOptions o = rig::small_options();
  o.encoder.depth = 1;
  o.keep_ratio = 0.5;
  rig::World world(o, 2);
  shake(world);
  // Attention adds nothing, so each token depends on its own patch.
  world.set("encoder/Transformer/encoderblock_0/MultiHeadDotProductAttention_0/out/kernel",
            Floats(24 * 24, 0.0f));
  rig::MadeBatch batch(o, 2);
  models::Cappa::Draws draws =
      world.model.draw(batch.labels.data(), 2, 0, true, base::Stream(4, "draws"));
  ASSERT_EQ(draws.kept.size(), 4u);
  auto losses = [&] {
    world.prepare(batch.host(2), draws);
    double nll[2], weight[2];
    const double trained = world.forward_backward()[Cappa::Sums::loss];
    world.evaluate(nll, weight);
    return std::pair(trained, nll[1]);
  };
  const auto before = losses();
  for (int32_t patch = 4; patch < 8; ++patch) {  // of the second image; the first has no words
    const bool kept = std::ranges::count(draws.kept, patch) > 0;
    const std::vector<float> image = batch.image;
    const int64_t row = patch % 4 / 2 * 8, column = patch % 2 * 8;
    for (int64_t c = 0; c < 3; ++c) batch.image[size_t((256 + row * 16 + column) * 3 + c)] += 1;
    const auto after = losses();
    EXPECT_EQ(after.first != before.first, kept) << patch;
    EXPECT_NE(after.second, before.second) << patch;
    batch.image = image;
  }
}

// A decoder that reads the positions of a ResNet's last map.
TEST(Cappa, GradientsOnAResnetAgainstDifferences) {
  models::CappaOptions o = rig::small_options();
  o.image_size = 32;
  auto resnet = std::make_shared<models::ResnetTrunkOptions>();
  resnet->config = {.blocks = {1, 1, 1, 1},
                    .bottleneck = false,
                    .width = 8,
                    .layer4_stride = 1,
                    .norm = models::ResnetNorm::group,
                    .norm_groups = 4};
  o.trunk = models::TrunkOptions{"resnet", resnet};
  rig::World world(o, 8);
  const std::map<std::string, Floats> gradients = gradients_of(world, o);
  int64_t of_trunk = 0;
  for (const auto& [path, gradient] : gradients) {
    if (!path.starts_with("trunk/")) continue;
    ++of_trunk;
    const double norm = one_rank::norm_of(gradient);
    ASSERT_GT(norm, 1e-5) << path;
    // Steps are short, so that few ReLUs change sides.
    const double slope = one_rank::slope_along(gradient, world.weight(path), 0.001, [&] {
      return world.forward_backward()[Cappa::Sums::loss] / 8;
    });
    EXPECT_NEAR(slope, norm, 0.03 * norm + 2e-4) << path;
  }
  EXPECT_GT(of_trunk, 20);
}

TEST(Cappa, RecomputeChangesNoBit) {
  models::CappaOptions o = rig::small_options();
  o.encoder.dropout = o.decoder.dropout = 0.2;
  std::vector<Floats> first;
  for (const char* recompute : {"none", "gelu", "mlp", "block"}) {
    rig::World world(o, 4, 2, {.recompute = base::value_of(models::kRecomputeNames, recompute)});
    shake(world);
    prepare(world, rig::MadeBatch(o, 4), 4);
    double loss = world.forward_backward()[Cappa::Sums::loss];
    std::vector<Floats> all = {{float(loss)}};
    for (const shard::Parameter& p : world.stores.layout.parameters()) {
      device::View g = world.gradient(p.path);
      all.emplace_back(g.f32(), g.f32() + g.count);
    }
    if (first.empty()) first = all;
    ASSERT_EQ(all.size(), first.size());
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(std::memcmp(all[i].data(), first[i].data(), all[i].size() * 4), 0)
          << recompute << ", tensor " << i;
  }
}

// Compares slices with more rows than a chunk of the packed logits holds, and slices that fit into
// one chunk each.
TEST(Cappa, LogitsInSeveralChunks) {
  models::CappaOptions o = rig::small_options();
  const int64_t n = 64;  // 64 x 9 rows, about half of them packed; a chunk has 256
  rig::World chunks(o, n), slices(o, n, 8);
  rig::MadeBatch batch(o, n);
  // All rows count, which gives three chunks, the last one padded.
  for (int32_t& l : batch.labels) l = l ? l : 2;
  rig::Sums sums[2];
  for (rig::World* world : {&chunks, &slices}) {
    shake(*world);
    prepare(*world, batch, n);
    sums[world == &slices] = world->forward_backward();
  }
  for (size_t i = 0; i < sums[0].size(); ++i)
    EXPECT_NEAR(sums[0][i], sums[1][i], 1e-6 * std::abs(sums[1][i])) << i;
  for (const shard::Parameter& p : chunks.stores.layout.parameters()) {
    device::View a = chunks.gradient(p.path), b = slices.gradient(p.path);
    double largest = 1e-6;
    for (int64_t i = 0; i < b.count; ++i) largest = std::max(largest, std::abs(double(b.f32()[i])));
    for (int64_t i = 0; i < a.count; ++i)
      ASSERT_NEAR(double(a.f32()[i]), double(b.f32()[i]), 2e-5 * largest + 1e-8)
          << p.path << " " << i;
  }
}

// A caption that is all padding has no weight. It gives no NaN and no gradient, even if a slice has
// no target at all.
TEST(Cappa, EmptyCaptions) {
  models::CappaOptions o = rig::small_options();
  rig::World world(o, 4, 2);
  shake(world);
  rig::MadeBatch batch(o, 4);
  std::fill(batch.labels.begin(), batch.labels.end(), 0);
  prepare(world, batch, 4);
  rig::Sums s = world.forward_backward();
  EXPECT_EQ(s[Cappa::Sums::loss], 0);
  EXPECT_EQ(s[Cappa::Sums::tokens], 0);
  for (const shard::Parameter& p : world.stores.layout.parameters()) {
    device::View g = world.gradient(p.path);
    for (int64_t i = 0; i < g.count; ++i) ASSERT_EQ(g.f32()[i], 0) << p.path;
  }
  std::vector<double> nll(4, -1.0), weight(4, -1.0);
  world.evaluate(nll.data(), weight.data());
  EXPECT_EQ(nll, std::vector<double>(4, 0.0));
  EXPECT_EQ(weight, std::vector<double>(4, 0.0));
}

// The loss is split into its two kinds. The mean weights every example equally, whatever the length
// of its caption. With another model.pad_id, 0 is a token like others.
TEST(Cappa, SumsOverTheExamples) {
  for (const int32_t pad : {0, 3}) {
    SCOPED_TRACE(pad);
    models::CappaOptions o = rig::small_options();
    o.pad_id = pad;
    rig::World world(o, 12, 3);
    shake(world);
    rig::MadeBatch batch(o, 12);
    for (int32_t& id : batch.labels) id = id == 0 ? pad : id == pad ? 0 : id;
    prepare(world, batch, 12);
    Floats logits = world.logits();
    double loss[2] = {}, examples[2] = {}, tokens = 0, nll_of_tokens = 0;
    for (size_t b = 0; b < 12; ++b) {
      double sum = 0, n = 0;
      for (size_t r = b * 9; r < (b + 1) * 9; ++r) {
        if (batch.labels[r] == pad) continue;
        double partition = 0;
        for (size_t v = 0; v < 61; ++v) partition += std::exp(double(logits[r * 61 + v]));
        sum += std::log(partition) - double(logits[r * 61 + size_t(batch.labels[r])]);
        ++n;
      }
      const bool parallel = !world.inputs.at("causal").host.u8()[b];
      loss[parallel] += n > 0 ? sum / n : 0;
      ++examples[parallel];
      tokens += n;
      nll_of_tokens += sum;
    }
    rig::Sums s = world.forward_backward();
    EXPECT_NEAR(s[Cappa::Sums::loss_ar], loss[0], 1e-5);
    EXPECT_NEAR(s[Cappa::Sums::loss_parallel], loss[1], 1e-5);
    EXPECT_NEAR(s[Cappa::Sums::loss], loss[0] + loss[1], 1e-5);
    EXPECT_EQ(s[Cappa::Sums::examples_ar], examples[0]);
    EXPECT_EQ(s[Cappa::Sums::examples_parallel], examples[1]);
    EXPECT_GT(examples[0], 0);
    EXPECT_GT(examples[1], 0);
    EXPECT_EQ(s[Cappa::Sums::tokens], tokens);
    EXPECT_NEAR(s[Cappa::Sums::token_nll], nll_of_tokens, 1e-4);
  }
}

}  // namespace
