// SPDX-License-Identifier: Apache-2.0
// Compares the masked autoencoder with the published code (tests/golden/mae/case.h5): positions,
// predictions, losses, gradients and features. Tests the draws of masks, and keys that are refused.
#include "models/masked/mae.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "one_rank.hpp"
#include "tests/unit/optim/golden_file.hpp"

namespace {
namespace mae_test {

using device::View;
using models::Mae;
using models::MaeOptions;
using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

constexpr int64_t kExamples = 4, kSide = 32;

// Returns the model of the recorded case.
MaeOptions recorded(bool normalized = true) {
  auto vit = std::make_shared<models::VitTrunkOptions>();
  vit->size = {.variant = "",
               .patch = 8,
               .depth = 2,
               .width = 16,
               .mlp = 64,
               .heads = 2,
               .gelu = nn::Gelu::erf};
  vit->pool = models::Pool::tok;
  vit->positions = models::Positions::mae;
  MaeOptions o;
  o.image_size = kSide;
  o.mask_ratio = 0.7;
  o.normalize_pixels = normalized;
  o.trunk = {"vit", vit};
  o.decoder = {.depth = 1, .width = 12, .heads = 3};
  return o;
}

class World {
 public:
  explicit World(const MaeOptions& options, bool bytes = false, int64_t slices = 1,
                 models::Recompute recompute = models::Recompute::none)
      : model(made(options, recompute, bytes)),
        stores(model->parameters(), model->blocks(),
               {.batch = kExamples, .slices = slices, .tree = true}),
        inputs(stores.make_inputs(model->inputs())),
        sums_(size_t(slices)) {
    stores.make_arena(int64_t{16} << 20);
    stores.weights.initialise(1);
    stores.weights.publish();
  }
  // Takes weights, images and kept patches of the file.
  void load(const golden::File& file) {
    for (const shard::Parameter& p : stores.layout.parameters()) {
      const Floats values = file.floats("params/" + p.path);
      const View w = stores.weight(p.path);
      ASSERT_EQ(w.count, int64_t(values.size())) << p.path;
      std::copy(values.begin(), values.end(), w.f32());
    }
    const Floats image = file.floats("image"), kept = file.floats("kept");
    const View to = inputs.at("image").host;
    ASSERT_EQ(to.count, int64_t(image.size()));
    for (int64_t i = 0; i < to.count; ++i) {
      if (to.type == device::DType::u8)
        to.u8()[i] = uint8_t(image[size_t(i)]);
      else
        to.f32()[i] = image[size_t(i)] / 127.5f - 1;
    }
    model->prepare(Ints(kept.begin(), kept.end()), inputs);
  }
  double loss() {
    stores.train([&](nn::Context& ctx) { train_->run(ctx, inputs, kExamples, sums()); });
    return std::accumulate(sums_.begin(), sums_.end(), 0.0) / double(kExamples);
  }
  Floats pixels() {
    nn::Context ctx = stores.context(false);
    return predict(ctx);
  }
  Floats encoded() {
    Floats out(size_t(kExamples * embed_->taps()[0].count()));
    nn::Context ctx = stores.context(false);
    embed_->run(ctx, inputs, {out.data()});
    return out;
  }

  std::unique_ptr<Mae> model;
  one_rank::Stores stores;
  models::Inputs inputs;

 private:
  static std::unique_ptr<Mae> made(const MaeOptions& options, models::Recompute recompute,
                                   bool bytes) {
    auto out = std::make_unique<Mae>(options, models::MemoryOptions{.recompute = recompute});
    if (bytes) out->take_bytes({});
    return out;
  }
  Floats predict(nn::Context& ctx) {
    device::Arena::Scope scope(ctx.arena);
    Mae::State state = model->make_state();
    model->place(ctx, inputs, state);
    const View y =
        ctx.arena.temporary(kExamples * model->options().masked() * model->options().pixels());
    model->predict(ctx, inputs, y, state);
    ctx.arena.pop_low(state.start);
    if (ctx.queue.kind() == device::Kind::plan) return {};
    return {y.f32(), y.f32() + y.count};
  }
  View sums() { return {sums_.data(), device::DType::f64, int64_t(sums_.size())}; }

  std::unique_ptr<models::TrainPass> train_ = model->make_train_pass();
  std::unique_ptr<models::EmbedPass> embed_ = model->make_embed_pass({"encoded"});
  std::vector<double> sums_;  // by slice
};

void compare(const Floats& got, const golden::File& file, const std::string& set) {
  const Floats want = file.floats(set);
  ASSERT_EQ(got.size(), want.size()) << set;
  const double tolerance = file.number(set, "tol");
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(double(got[i]), double(want[i]), tolerance) << set << " " << i;
}

void compare_step(World& world, const golden::File& file, const std::string& group) {
  world.load(file);
  compare(world.pixels(), file, group + "/pixels");
  EXPECT_NEAR(world.loss(), double(file.floats(group + "/loss")[0]),
              file.number(group + "/loss", "tol"));
  for (const shard::Parameter& p : world.stores.layout.parameters())
    if (p.trained())
      compare(world.stores.gradient_values(p.path), file, group + "/grads/" + p.path);
}

TEST(Mae, PositionsAreThePublishedOnes) {
  const golden::File file("mae/case.h5");
  compare(models::mae_positions(4, 4, 16), file, "params/encoder/pos_embedding");
  compare(models::mae_positions(4, 4, 12), file, "params/decoder/pos_embedding");
}

TEST(Mae, StepsAreThePublishedOnes) {
  const golden::File file("mae/case.h5");
  for (const bool normalized : {true, false})
    for (const auto& [slices, recompute] :
         {std::pair<int64_t, models::Recompute>{1, models::Recompute::none},
          {2, models::Recompute::mlp},
          {4, models::Recompute::block}}) {
      SCOPED_TRACE(fmt::format("{} slices, normalized {}", slices, normalized));
      World world(recorded(normalized), slices == 2, slices, recompute);
      compare_step(world, file, normalized ? "normalized" : "plain");
    }
}

// An embed pass reads all patches. Passes of both kinds may take turns.
TEST(Mae, FeaturesAreThePublishedOnes) {
  const golden::File file("mae/case.h5");
  World world(recorded());
  world.load(file);
  compare(world.encoded(), file, "encoded");
  compare(world.pixels(), file, "normalized/pixels");
  compare(world.encoded(), file, "encoded");
}

// With a trained table, differences agree with its gradient, and patches that no example keeps have
// none.
TEST(Mae, TrainedPositions) {
  const golden::File file("mae/case.h5");
  MaeOptions options = recorded();
  auto vit = std::make_shared<models::VitTrunkOptions>(options.vit());
  vit->positions = models::Positions::learned;
  options.trunk.options = vit;
  World world(options, false, 2);
  world.load(file);
  world.loss();
  const char* path = "encoder/pos_embedding";
  const Floats gradient = world.stores.gradient_values(path);
  const double norm = one_rank::norm_of(gradient);
  const double slope = one_rank::slope_along(gradient, world.stores.weight(path), 0.01,
                                             [&] { return world.loss(); });
  EXPECT_NEAR(slope, norm, 2e-3 * norm);
  const Floats kept = file.floats("kept");
  for (int64_t p = 0; p < options.patches(); ++p) {
    const bool seen = std::find(kept.begin(), kept.end(), float(p)) != kept.end();
    const auto begin = gradient.begin() + p * 16;
    EXPECT_EQ(std::any_of(begin, begin + 16, [](float g) { return g != 0; }), seen) << p;
  }
}

// Each example keeps so many patches, ascending, all equally often, and the same at a position
// whatever the batch is.
TEST(Mae, Draws) {
  const Mae model(recorded(), {});
  const int64_t n = 4000, kept = 4, patches = 16;
  ASSERT_EQ(model.options().kept(), kept);
  ASSERT_EQ(model.options().masked(), patches - kept);
  const base::Stream stream = base::Stream(12, "draws").sub(1);
  const Ints all = model.draw(n, 0, stream);
  ASSERT_EQ(int64_t(all.size()), n * kept);
  std::vector<int64_t> hits(size_t(patches), 0);
  for (int64_t i = 0; i < n * kept; ++i) {
    if (i % kept) {
      ASSERT_GT(all[size_t(i)], all[size_t(i - 1)]);
    }
    ++hits.at(size_t(all[size_t(i)]));
  }
  const double share = double(kept) / double(patches), expected = share * double(n);
  for (const int64_t hit : hits)
    EXPECT_NEAR(double(hit), expected, 5 * std::sqrt(expected * (1 - share)));
  const Ints part = model.draw(2, 70, stream);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 70 * kept));
  EXPECT_NE(model.draw(n, 0, base::Stream(12, "draws").sub(2)), all) << "of another step";
}

// The fraction is cut off, as in the published code.
TEST(Mae, NumberOfKeptPatches) {
  MaeOptions o = recorded();
  for (const auto& [ratio, kept] :
       {std::pair<double, int64_t>{0.75, 4}, {0.7, 4}, {0.5, 8}, {0.9, 1}, {0.05, 15}}) {
    o.mask_ratio = ratio;
    EXPECT_EQ(o.kept(), kept) << ratio;
  }
}

}  // namespace mae_test
}  // namespace
