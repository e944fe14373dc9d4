// SPDX-License-Identifier: Apache-2.0
// Tests a ViT on views of several sizes in one pass: features equal those of each size alone, and
// gradients equal differences.
#include <gtest/gtest.h>

#include <map>

#include "models/trunks/pooled_trunk.hpp"
#include "models/trunks/vit_options.hpp"
#include "one_rank.hpp"

namespace {

using device::View;
using models::ImageGroup;
using models::Positions;
using Floats = std::vector<float>;

constexpr Positions kPositions[] = {Positions::learned, Positions::fixed, Positions::rotary};

class ViewsWorld {
 public:
  static constexpr int64_t kExamples = 4, kWidth = 24;

  explicit ViewsWorld(Positions positions, int64_t slices = 1)
      : encoder_(options(positions), 16, 24, models::Recompute::none, list_),
        stores(list_.parameters(), list_.blocks(),
               {.batch = kExamples, .slices = slices, .tree = true}) {
    stores.make_arena(int64_t{16} << 20);
    stores.shake(5, "shake", [](const std::string&) { return 0.1; });
    add({.per_example = 2, .height = 16, .width = 24});
    add({.per_example = 3, .height = 8, .width = 16});
  }
  int64_t views() const { return groups[0].per_example + groups[1].per_example; }

  using Pass = models::PooledTrunk::Pass;
  Pass make_pass() const { return encoder_.make_pass(); }
  // Returns the features of these groups, and computes gradients of sum(features * cotangent) if
  // there is one.
  Floats run(std::span<const ImageGroup> of, const Floats& cotangent = {}) {
    Pass pass = make_pass();
    return run(of, cotangent, pass, kExamples);
  }
  Floats run(std::span<const ImageGroup> of, const Floats& cotangent, Pass& pass,
             int64_t examples) {
    nn::Context ctx = stores.context(true);
    ctx.batch = examples;
    ctx.keep = !cotangent.empty();
    const device::Arena::Mark start = ctx.arena.low();
    device::Arena::Scope scope(ctx.arena);
    stores.gradients.begin_step();
    stores.gradients.begin_micro_batch(0);
    encoder_.place(ctx, of, pass);
    const View f = encoder_.forward(ctx, of, -1, pass);
    Floats out(f.f32(), f.f32() + f.count);
    if (!cotangent.empty()) {
      const View d = ctx.arena.temporary(f.count);
      std::copy(cotangent.begin(), cotangent.end(), d.f32());
      encoder_.backward(ctx, d, pass);
      stores.gradients.finish_step();
    }
    ctx.arena.pop_low(start);
    return out;
  }

  std::vector<ImageGroup> groups;

 private:
  static models::VitTrunkOptions options(Positions positions) {
    models::VitTrunkOptions o;
    o.size = {.variant = "", .patch = 8, .depth = 2, .width = kWidth, .mlp = 40, .heads = 3};
    o.positions = positions;
    o.size.swiglu = positions == Positions::rotary;  // as DINOv3's large ones
    o.pool = models::Pool::tok;
    o.registers = 2;
    o.pre_norm = true;
    o.size.layer_scale = 0.5;
    return o;
  }
  void add(ImageGroup group) {
    Floats& x = images_.emplace_back();
    base::Stream s(3, "view" + std::to_string(images_.size()));
    const int64_t count = kExamples * group.per_example * group.height * group.width * 3;
    for (int64_t i = 0; i < count; ++i) x.push_back(2 * s.uniform(uint64_t(i)) - 1);
    group.images = device::view(x.data(), count);
    groups.push_back(group);
  }

  models::ParameterList list_;
  models::PooledTrunk encoder_;
  std::vector<Floats> images_;

 public:
  one_rank::Stores stores;
};

TEST(VitViews, FeaturesAreThoseOfEachSizeAlone) {
  for (Positions positions : {Positions::learned, Positions::rotary}) {
    ViewsWorld world(positions);
    const Floats all = world.run(world.groups), first = world.run({&world.groups[0], 1});
    ASSERT_EQ(all.size(), size_t(ViewsWorld::kExamples * 5 * ViewsWorld::kWidth));
    for (int64_t b = 0; b < ViewsWorld::kExamples; ++b)
      for (int64_t i = 0; i < 2 * ViewsWorld::kWidth; ++i)
        EXPECT_NEAR(all[size_t(b * 5 * ViewsWorld::kWidth + i)],
                    first[size_t(b * 2 * ViewsWorld::kWidth + i)], 2e-5);
  }
}

// The angles follow DINOv3: a place is the middle of a patch in [-1, 1], and the period of number k
// is 100^(k / quarter). The numbers of the vertical axis come first.
TEST(VitViews, RotaryAnglesAreThePublishedOnes) {
  const Floats table = models::rotary2d(2, 3, 8);
  ASSERT_EQ(table.size(), size_t(2 * 3 * 8));
  const auto expect = [&](int64_t patch, int64_t k, double angle) {
    EXPECT_NEAR(table[size_t(patch * 8 + k)], std::cos(angle), 1e-6);
    EXPECT_NEAR(table[size_t(patch * 8 + 4 + k)], std::sin(angle), 1e-6);
  };
  const double turn = 2 * 3.14159265358979323846;
  expect(0, 0, -turn / 2);       // the upper row is at -1/2
  expect(0, 1, -turn / 2 / 10);  // the second period is 10
  expect(0, 2, -turn * 2 / 3);   // the left column is at -2/3
  expect(1, 2, 0);
  expect(5, 1, turn / 2 / 10);
  expect(5, 3, turn * 2 / 3 / 10);
}

// A pass keeps its tables until other images come.
TEST(VitViews, TablesAreMadeOnceForEqualImages) {
  for (Positions positions : kPositions) {
    ViewsWorld world(positions);
    const std::span<const ImageGroup> both = world.groups, first = both.first(1);
    constexpr int64_t kAll = ViewsWorld::kExamples, kFew = kAll / 2;
    const Floats all = world.run(both), alone = world.run(first);
    ViewsWorld::Pass pass = world.make_pass();
    const models::Vit::HostTables& host = dynamic_cast<models::Vit::VitPass&>(*pass.trunk).host;
    EXPECT_EQ(world.run(both, {}, pass, kAll), all);
    const int32_t* made = host.sources.data();
    EXPECT_EQ(world.run(both, {}, pass, kAll), all);
    EXPECT_EQ(host.sources.data(), made) << "the same images again";
    EXPECT_EQ(world.run(first, {}, pass, kAll), alone) << "one size";
    EXPECT_EQ(world.run(both, {}, pass, kAll), all);
    std::vector<ImageGroup> some = world.groups;
    for (ImageGroup& g : some) g.images = g.images.slice(0, g.images.count / kAll * kFew);
    ViewsWorld::Pass fresh = world.make_pass();
    EXPECT_EQ(world.run(some, {}, pass, kFew), world.run(some, {}, fresh, kFew));
    EXPECT_EQ(world.run(both, {}, pass, kAll), all);
  }
}

TEST(VitViews, GradientsAgainstDifferences) {
  for (Positions positions : kPositions)
    for (int64_t slices : {1, 4}) {
      SCOPED_TRACE(slices);
      ViewsWorld world(positions, slices);
      Floats cotangent;
      const base::Stream s(9, "cotangent");
      for (int64_t i = 0; i < ViewsWorld::kExamples * 5 * ViewsWorld::kWidth; ++i)
        cotangent.push_back(float(s.normal(uint64_t(i))));
      world.run(world.groups, cotangent);
      std::map<std::string, Floats> gradients;
      for (const shard::Parameter& p : world.stores.layout.parameters())
        gradients[p.path] = world.stores.gradient_values(p.path);
      auto objective = [&] {
        const Floats f = world.run(world.groups);
        double sum = 0;
        for (size_t i = 0; i < f.size(); ++i) sum += double(f[i]) * double(cotangent[i]);
        return sum;
      };
      for (const auto& [path, gradient] : gradients) {
        const double norm = one_rank::norm_of(gradient);
        if (path.ends_with("key/bias")) continue;  // zero in exact arithmetic
        ASSERT_GT(norm, 1e-3) << path;
        const double slope =
            one_rank::slope_along(gradient, world.stores.weight(path), 0.01, objective);
        EXPECT_NEAR(slope, norm, 5e-3 * norm + 1e-3) << path;
      }
    }
}

// The weights of torch.nn.functional.interpolate(mode="bicubic"), whose cubic has a = -0.75. Values
// beyond the ends count for those at the ends.
TEST(VitViews, ResamplingHasThePublishedWeights) {
  const auto expect = [](const Floats& got, const std::vector<double>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-7) << i;
  };
  const double edge = 185 / 216.0, beside = 139 / 864.0, far = -5 / 288.0;
  const std::vector<double> three_of_four = {edge,      beside,    far, 0,   -3 / 32.0, 19 / 32.0,
                                             19 / 32.0, -3 / 32.0, 0,   far, beside,    edge};
  const std::vector<double> four_of_two = {283 / 256.0, -27 / 256.0, 99 / 128.0,  29 / 128.0,
                                           29 / 128.0,  99 / 128.0,  -27 / 256.0, 283 / 256.0};
  expect(models::cubic_resampling(4, 1, 3, 1), three_of_four);
  expect(models::cubic_resampling(1, 4, 1, 3), three_of_four);
  expect(models::cubic_resampling(2, 1, 4, 1), four_of_two);
  // Height and width are resampled separately.
  std::vector<double> both;
  for (size_t y = 0; y < 3; ++y)
    for (size_t x = 0; x < 4; ++x)
      for (size_t v = 0; v < 4; ++v)
        for (size_t u = 0; u < 2; ++u)
          both.push_back(three_of_four[y * 4 + v] * four_of_two[x * 2 + u]);
  expect(models::cubic_resampling(4, 2, 3, 4), both);
}

TEST(VitViews, ResamplingKeepsConstantsAndEqualGrids) {
  const Floats same = models::cubic_resampling(3, 4, 3, 4),
               down = models::cubic_resampling(7, 6, 3, 2);
  for (int64_t i = 0; i < 12; ++i)
    for (int64_t j = 0; j < 12; ++j) EXPECT_NEAR(same[size_t(i * 12 + j)], i == j ? 1 : 0, 1e-6);
  for (int64_t i = 0; i < 6; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < 42; ++j) sum += down[size_t(i * 42 + j)];
    EXPECT_NEAR(sum, 1, 1e-5);
  }
}

}  // namespace
