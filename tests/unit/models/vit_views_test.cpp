// SPDX-License-Identifier: Apache-2.0
// Tests a ViT on views of several sizes in one pass: features are those of each size alone, and
// gradients those of differences.
#include <gtest/gtest.h>

#include <cmath>

#include "models/vit_trunk.hpp"

namespace {

using device::DType;
using device::View;
using models::ImageGroup;
using Floats = std::vector<float>;

class ViewsWorld {
 public:
  static constexpr int64_t kExamples = 4, kWidth = 24;

  explicit ViewsWorld(bool learned, int64_t slices = 1)
      : trunk_(options(learned), 16, 24, models::Recompute::none, list_),
        ranks_(comm::make_plan_comm(1)),
        mesh_(comm::make_plan_mesh({1, 1}, *ranks_)),
        queue_(device::Kind::cpu, 1, true),
        layout(list_.parameters(), list_.blocks(), {}, 1, 1),
        weights_(fabric(), 0),
        gradients_(fabric(), 1),
        arena_(device::Kind::cpu, ledger_, "activations", int64_t{16} << 20),
        slices_(slices) {
    weights_.initialise(5);
    for (const shard::Parameter& p : layout.parameters()) {
      const View w = weight(p.path);
      base::Stream s(5, "shake/" + p.path);
      for (int64_t i = 0; i < w.count; ++i) w.f32()[i] += float(0.1 * s.normal(uint64_t(i)));
    }
    add({.per_example = 2, .height = 16, .width = 24});
    add({.per_example = 3, .height = 8, .width = 16});
  }
  View weight(const std::string& path) { return weights_.weight(layout.find(path)); }
  Floats gradient(const shard::Parameter& p) const {
    const View g = gradients_.owned(p.unit).slice(p.offset, p.size);
    return {g.f32(), g.f32() + g.count};
  }
  int64_t views() const { return groups[0].per_example + groups[1].per_example; }

  // Returns the features of these groups, and computes gradients of sum(features * cotangent) if
  // there is one.
  Floats run(std::span<const ImageGroup> of, const Floats& cotangent = {}) {
    nn::Context ctx{.queue = queue_,
                    .arena = arena_,
                    .weights = weights_,
                    .gradients = &gradients_,
                    .batch = kExamples,
                    .slices = slices_,
                    .train = true,
                    .keep = !cotangent.empty()};
    const device::Arena::Mark start = arena_.low();
    device::Arena::Scope scope(arena_);
    const auto pass = trunk_.make_pass();
    gradients_.begin_step();
    gradients_.begin_micro_batch(0);
    trunk_.place(ctx, of, *pass);
    const View f = trunk_.forward(ctx, of, -1, *pass);
    Floats out(f.f32(), f.f32() + f.count);
    if (!cotangent.empty()) {
      const View d = arena_.temporary(f.count);
      std::copy(cotangent.begin(), cotangent.end(), d.f32());
      trunk_.backward(ctx, d, *pass);
      gradients_.finish_step();
    }
    arena_.pop_low(start);
    return out;
  }

  std::vector<ImageGroup> groups;

 private:
  static models::VitTrunkOptions options(bool learned) {
    models::VitTrunkOptions o;
    o.size = {.variant = "", .patch = 8, .depth = 2, .width = kWidth, .mlp = 40, .heads = 3};
    o.learned_positions = learned;
    o.pool = models::Pool::tok;
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
  shard::Fabric fabric() { return {layout, mesh_, queue_, ledger_, true, DType::f32}; }

  models::ParameterList list_;
  models::VitTrunk trunk_;
  std::unique_ptr<comm::Comm> ranks_;
  comm::Mesh mesh_;
  device::Queue queue_;
  device::Ledger ledger_;

 public:
  shard::Layout layout;

 private:
  shard::WeightStore weights_;
  shard::GradientStore gradients_;
  device::Arena arena_;
  int64_t slices_;
  std::vector<Floats> images_;
};

TEST(VitViews, FeaturesAreThoseOfEachSizeAlone) {
  ViewsWorld world(true);
  const Floats all = world.run(world.groups), first = world.run({&world.groups[0], 1});
  ASSERT_EQ(all.size(), size_t(ViewsWorld::kExamples * 5 * ViewsWorld::kWidth));
  for (int64_t b = 0; b < ViewsWorld::kExamples; ++b)
    for (int64_t i = 0; i < 2 * ViewsWorld::kWidth; ++i)
      EXPECT_NEAR(all[size_t(b * 5 * ViewsWorld::kWidth + i)],
                  first[size_t(b * 2 * ViewsWorld::kWidth + i)], 2e-5);
}

TEST(VitViews, GradientsAgainstDifferences) {
  for (bool learned : {true, false})
    for (int64_t slices : {1, 4}) {
      SCOPED_TRACE(slices);
      ViewsWorld world(learned, slices);
      Floats cotangent;
      const base::Stream s(9, "cotangent");
      for (int64_t i = 0; i < ViewsWorld::kExamples * 5 * ViewsWorld::kWidth; ++i)
        cotangent.push_back(float(s.normal(uint64_t(i))));
      world.run(world.groups, cotangent);
      std::vector<Floats> gradients;
      for (const shard::Parameter& p : world.layout.parameters())
        gradients.push_back(world.gradient(p));
      for (size_t p = 0; p < gradients.size(); ++p) {
        const std::string& path = world.layout.parameters()[p].path;
        double norm = 0;
        for (float g : gradients[p]) norm += double(g) * double(g);
        norm = std::sqrt(norm);
        if (path.ends_with("key/bias")) continue;  // zero in exact arithmetic
        ASSERT_GT(norm, 1e-3) << path;
        const View w = world.weight(path);
        const Floats before(w.f32(), w.f32() + w.count);
        const double h = 0.01;
        auto at = [&](double way) {
          for (int64_t i = 0; i < w.count; ++i)
            w.f32()[i] =
                float(double(before[size_t(i)]) + way * double(gradients[p][size_t(i)]) / norm);
          const Floats f = world.run(world.groups);
          double sum = 0;
          for (size_t i = 0; i < f.size(); ++i) sum += double(f[i]) * double(cotangent[i]);
          return sum;
        };
        const double difference = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
        std::copy(before.begin(), before.end(), w.f32());
        EXPECT_NEAR(difference, norm, 5e-3 * norm + 1e-3) << path;
      }
    }
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
