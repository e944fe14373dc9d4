// SPDX-License-Identifier: Apache-2.0
// Tests the tower of texts: gradients against differences for all poolings, and that padding counts
// like any other token.
#include "models/pairs/text_tower.hpp"

#include <gtest/gtest.h>

#include <map>

#include "one_rank.hpp"

namespace {
namespace text_tower_test {

using device::View;
using models::TextPool;
using Floats = std::vector<float>;

constexpr int64_t kExamples = 4, kWidth = 24, kLength = 5, kVocabulary = 11;

class TextWorld {
 public:
  explicit TextWorld(TextPool pool, int64_t slices = 1,
                     models::Recompute recompute = models::Recompute::none)
      : tower_({.depth = 2, .width = kWidth, .mlp = 40, .heads = 3, .pool = pool}, kVocabulary,
               kLength, recompute, list_),
        stores(list_.parameters(), list_.blocks(),
               {.batch = kExamples, .slices = slices, .tree = true}) {
    stores.make_arena(int64_t{16} << 20);
    stores.shake(5, "shake", [](const std::string&) { return 0.1; });
    const base::Stream s(3, "ids");
    for (int64_t i = 0; i < kExamples * kLength; ++i)
      ids.push_back(int32_t(s.bits(uint64_t(i)) % uint64_t(kVocabulary)));
  }

  // Returns the vectors, and computes gradients of sum(vectors * cotangent) if there is one.
  Floats run(const Floats& cotangent = {}) {
    nn::Context ctx = stores.context(true);
    ctx.keep = !cotangent.empty();
    const device::Arena::Mark start = ctx.arena.low();
    device::Arena::Scope scope(ctx.arena);
    models::TextTower::Pass pass;
    stores.gradients.begin_step();
    stores.gradients.begin_micro_batch(0);
    tower_.place(ctx, pass);
    const View y = tower_.forward(ctx, device::view(ids.data(), int64_t(ids.size())), -1, pass);
    Floats out(y.f32(), y.f32() + y.count);
    if (!cotangent.empty()) {
      const View d = ctx.arena.temporary(y.count);
      std::copy(cotangent.begin(), cotangent.end(), d.f32());
      tower_.backward(ctx, d, -1, pass);
      stores.gradients.finish_step();
    }
    ctx.arena.pop_low(start);
    return out;
  }

  std::vector<int32_t> ids;

 private:
  models::ParameterList list_;
  models::TextTower tower_;

 public:
  one_rank::Stores stores;
};

void check_gradients(TextWorld& world) {
  Floats cotangent;
  const base::Stream s(9, "cotangent");
  for (int64_t i = 0; i < kExamples * kWidth; ++i)
    cotangent.push_back(float(s.normal(uint64_t(i))));
  world.run(cotangent);
  std::map<std::string, Floats> gradients;
  for (const shard::Parameter& p : world.stores.layout.parameters())
    gradients[p.path] = world.stores.gradient_values(p.path);
  auto objective = [&] {
    const Floats y = world.run();
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += double(y[i]) * double(cotangent[i]);
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

TEST(TextTower, GradientsAgainstDifferences) {
  for (const TextPool pool : {TextPool::last, TextPool::first, TextPool::mean, TextPool::map})
    for (const auto& [slices, recompute] :
         {std::pair<int64_t, models::Recompute>{1, models::Recompute::none},
          {4, models::Recompute::block}}) {
      SCOPED_TRACE(fmt::format("pooling {}, {} slices", int(pool), slices));
      TextWorld world(pool, slices, recompute);
      check_gradients(world);
    }
}

// No token is masked: each one of a text changes its vector, and no other text's.
TEST(TextTower, EveryTokenCounts) {
  for (const TextPool pool : {TextPool::last, TextPool::first, TextPool::mean, TextPool::map}) {
    TextWorld world(pool);
    const Floats before = world.run();
    for (int64_t l = 0; l < kLength; ++l) {
      int32_t& id = world.ids[size_t(kLength + l)];  // of text 1
      const int32_t was = id;
      id = (was + 1) % int32_t(kVocabulary);
      const Floats after = world.run();
      id = was;
      for (int64_t b = 0; b < kExamples; ++b)
        EXPECT_EQ(b != 1, std::equal(before.begin() + b * kWidth, before.begin() + (b + 1) * kWidth,
                                     after.begin() + b * kWidth))
            << "pooling " << int(pool) << ", token " << l << ", text " << b;
    }
  }
}

}  // namespace text_tower_test
}  // namespace
