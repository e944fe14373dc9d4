// SPDX-License-Identifier: Apache-2.0
// Tests ConvNeXts: values that torchvision computed (tests/golden/convnext), the published numbers
// of parameters, names, taps, keys, gradients of several sizes of images, and stochastic depth.
#include "models/trunks/convolutional/convnext.hpp"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "config/table.hpp"
#include "models/trunks/pooled_trunk.hpp"
#include "one_rank.hpp"
#include "tests/unit/optim/golden_file.hpp"

namespace {

using device::DType;
using device::View;
using models::ConvnextTrunk;
using Floats = std::vector<float>;
using Sizes = std::vector<int64_t>;

// ---- a trunk with its pooling, and the loss sum(features * cotangent)

class TrunkWorld {
 public:
  TrunkWorld(const models::ConvnextConfig& config, int64_t batch,
             std::vector<models::ImageGroup> groups, models::Recompute recompute,
             int64_t slices = 1, DType operands = DType::f32)
      : groups_(std::move(groups)),
        encoder(keys_of(config), groups_[0].height, groups_[0].width, recompute, list_),
        stores(list_.parameters(), list_.blocks(),
               {.batch = batch, .slices = slices, .operands = operands, .threads = 2}) {
    int64_t views = 0;
    for (models::ImageGroup& g : groups_) {
      const int64_t count = batch * g.per_example * g.height * g.width * 3;
      images.emplace_back();
      for (int64_t i = 0; i < count; ++i)
        images.back().push_back(
            float(base::Stream(3, "image").sub(images.size()).normal(uint64_t(i))));
      image_gradients.emplace_back(size_t(count));
      views += g.per_example;
    }
    for (int64_t i = 0; i < batch * views * encoder.width(); ++i)
      cotangent.push_back(float(base::Stream(3, "cotangent").normal(uint64_t(i))));
    features.resize(cotangent.size());
    stores.make_arena_for([&](nn::Context& train, nn::Context& forward) {
      run(train);
      run(forward);
    });
    stores.shake(5, "noise", [](const std::string& path) {
      return path.ends_with("layer_scale") ? 0.5 : path.ends_with(".weight") ? 0.2 : 0.1;
    });
  }

  double loss() {
    stores.train([&](nn::Context& ctx) { run(ctx); });
    double sum = 0;
    for (size_t i = 0; i < features.size(); ++i) sum += double(features[i]) * double(cotangent[i]);
    return sum;
  }
  // Forward without a backward pass that follows.
  Floats evaluated() {
    nn::Context ctx = stores.context(false);
    run(ctx);
    return features;
  }
  void run(nn::Context& ctx) {
    const bool plan = ctx.queue.kind() == device::Kind::plan;
    ctx.dropout = base::Stream(1, "step");
    device::Arena::Scope scope(ctx.arena);
    const device::Arena::Mark start = ctx.arena.low();
    models::PooledTrunk::Pass pass = encoder.make_pass();
    auto& p = dynamic_cast<ConvnextTrunk::ConvPass&>(*pass.trunk);
    for (size_t g = 0; g < groups_.size(); ++g)
      groups_[g].images = device::view(images[g].data(), int64_t(images[g].size()));
    encoder.place(ctx, groups_, pass);
    if (!plan) set_factors(p);
    p.read_tap = [&](const models::Trunk::TapValues& t) {
      if (!plan) taps[t.tap] = {t.values.f32(), t.values.f32() + t.values.count};
    };
    if (operands_are_f32(ctx))
      for (const models::Tap& tap : encoder.trunk().taps(groups_[0].height, groups_[0].width))
        if (groups_.size() == 1) p.taps.push_back(tap.name);
    const View y = encoder.forward(ctx, groups_, -1, pass);
    if (!plan) features.assign(y.f32(), y.f32() + y.count);
    if (!ctx.keep) return ctx.arena.pop_low(start);
    for (Floats& v : image_gradients)
      if (operands_are_f32(ctx))
        p.image_gradients.push_back(device::view(v.data(), int64_t(v.size())));
    const View d = ctx.arena.temporary(y.count);
    if (!plan) std::copy(cotangent.begin(), cotangent.end(), d.f32());
    encoder.backward(ctx, d, pass);
  }
  std::map<std::string, Floats> gradients() const {
    std::map<std::string, Floats> out;
    for (const shard::Parameter& p : stores.layout.parameters())
      out[p.path] = stores.gradient_values(p.path);
    return out;
  }

 private:
  static models::ConvnextTrunkOptions keys_of(const models::ConvnextConfig& config) {
    models::ConvnextTrunkOptions keys;
    keys.config = config;
    return keys;
  }
  static bool operands_are_f32(const nn::Context& ctx) { return ctx.activation() == DType::f32; }
  // Puts recorded draws in the place of those that the trunk made.
  void set_factors(ConvnextTrunk::ConvPass& p) {
    size_t next = 0;
    for (auto& made : p.layers) {
      View& factor = made.groups[0].saved.factor;
      if (factor.none() || factors.empty()) continue;
      Floats& recorded = factors.at(next++);
      factor = device::view(recorded.data(), int64_t(recorded.size()));
    }
    EXPECT_EQ(next, factors.size());
  }

  models::ParameterList list_;
  std::vector<models::ImageGroup> groups_;

 public:
  models::PooledTrunk encoder;
  one_rank::Stores stores;
  std::vector<Floats> images, image_gradients;  // by group
  Floats cotangent, features;
  std::map<std::string, Floats> taps;
  std::vector<Floats> factors;  // by block that may drop; empty: those that the trunk draws
};

// ---- recorded values

struct Recorded {
  golden::File file{"convnext/case_base_32x32.h5"};
  std::vector<std::pair<std::string, Sizes>> shapes;  // of the trunk's tensors, in the file's order

  Recorded() {
    std::istringstream lines(file.text("/", "names"));
    for (std::string name, sizes; lines >> name >> sizes;) {
      Sizes shape;
      std::istringstream numbers(sizes);
      for (std::string n; std::getline(numbers, n, ',');) shape.push_back(std::stoll(n));
      shapes.emplace_back(name, shape);
    }
  }
  // Returns [images, height, width, channels] of a set [images, channels, height, width].
  Floats images(const std::string& set) const {
    const Floats x = file.floats(set);
    const Sizes s = file.shape(set);
    const int64_t pixels = s[2] * s[3];
    Floats y(x.size());
    for (int64_t i = 0; i < s[0]; ++i)
      for (int64_t c = 0; c < s[1]; ++c)
        for (int64_t p = 0; p < pixels; ++p)
          y[size_t((i * pixels + p) * s[1] + c)] = x[size_t((i * s[1] + c) * pixels + p)];
    return y;
  }
  // Compares with the first values of `got`.
  void expect_near(const Floats& got, const Floats& want, double tolerance,
                   const std::string& what) const {
    ASSERT_LE(want.size(), got.size()) << what;
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i)
      worst = std::max(worst, std::abs(double(got[i]) - double(want[i])));
    EXPECT_LE(worst, tolerance) << what;
  }
  void expect_set(const Floats& got, const std::string& set) const {
    const bool maps = file.shape(set).size() == 4;
    expect_near(got, maps ? images(set) : file.floats(set), file.number(set, "tol"), set);
  }
  // Loads the recorded weights and images.
  void load(TrunkWorld& world) const {
    const Floats all = file.floats("params");
    int64_t at = 0;
    for (const auto& [name, shape] : shapes) {
      const View w = world.stores.weight("trunk/" + name);
      std::copy_n(all.begin() + at, w.count, w.f32());
      at += w.count;
    }
    EXPECT_EQ(at, int64_t(all.size()));
    world.stores.weights.publish();
    world.images[0] = images("image");
    world.cotangent = file.floats("cotangent");
  }
};

models::ConvnextConfig base_config(double drop_path = 0) {
  return {.depths = {1, 1, 2, 1}, .widths = {8, 16, 24, 32}, .drop_path = drop_path};
}
const std::vector<models::ImageGroup> kRecordedSize = {{.height = 32, .width = 32}};

TEST(Convnext, AgreesWithTorchvision) {
  const Recorded recorded;
  for (const auto recompute : {models::Recompute::none, models::Recompute::mlp})
    for (const int64_t slices : {1, 4}) {
      TrunkWorld world(base_config(), 8, kRecordedSize, recompute, slices);
      recorded.load(world);
      recorded.expect_set({float(world.loss())}, "loss");
      recorded.expect_set(world.features, "features");
      for (const char* tap : {"stem", "stage1", "stage3", "stage4"})
        recorded.expect_set(world.taps.at(tap), std::string("taps/") + tap);
      recorded.expect_set(world.image_gradients[0], "grad_image");
      const Floats all = recorded.file.floats("grads"),
                   tolerance = recorded.file.floats("grad_tol");
      auto want = all.begin();
      size_t set = 0;
      for (const auto& [name, shape] : recorded.shapes) {
        if (name.starts_with("features.5.")) continue;  // left out of the file
        const Floats got = world.stores.gradient_values("trunk/" + name);
        recorded.expect_near(got, {want, want + std::ptrdiff_t(got.size())},
                             double(tolerance[set++]), name);
        want += std::ptrdiff_t(got.size());
      }
      EXPECT_EQ(want, all.end());
    }
}

// Stochastic depth with the draws that torchvision made.
TEST(Convnext, DropsBranchesAsTorchvision) {
  const Recorded recorded;
  const Floats keep = recorded.file.floats("drop/keep"), prob = recorded.file.floats("drop/prob");
  TrunkWorld world(base_config(0.6), 8, kRecordedSize, models::Recompute::none, 2);
  recorded.load(world);
  for (size_t block = 1; block < prob.size(); ++block) {  // the first one is never dropped
    world.factors.emplace_back();
    for (size_t i = 0; i < 8; ++i)
      world.factors.back().push_back(keep[block * 8 + i] / (1 - prob[block]));
  }
  recorded.expect_set({float(world.loss())}, "drop/loss");
  recorded.expect_set(world.features, "drop/features");
  Floats got;
  for (const auto& [name, shape] : recorded.shapes)
    if (name.ends_with("layer_scale"))
      for (float g : world.stores.gradient_values("trunk/" + name)) got.push_back(g);
  recorded.expect_set(got, "drop/layer_scale_grads");
}

// ---- names and sizes

std::map<std::string, shard::Parameter> declared_by(const models::ConvnextConfig& config) {
  models::ParameterList list;
  models::ConvnextTrunkOptions keys;
  keys.config = config;
  const models::PooledTrunk trunk(keys, 224, 224, models::Recompute::none, list);
  std::map<std::string, shard::Parameter> out;
  for (const shard::Parameter& p : list.parameters()) out[p.path] = p;
  return out;
}

TEST(Convnext, HasThePublishedSizes) {
  auto count = [](const models::ConvnextConfig& config) {
    int64_t sum = 0;
    for (const auto& [path, p] : declared_by(config)) {
      int64_t n = 1;
      for (int64_t d : p.shape) n *= d;
      sum += n;
    }
    return sum;
  };
  EXPECT_EQ(count({}), 28589128 - 769000);  // the classifier of 1000 classes is a head
  EXPECT_EQ(count({.depths = {3, 3, 27, 3}, .widths = {128, 256, 512, 1024}}), 88591464 - 1025000);
}

TEST(Convnext, NamesParametersAndTapsAsTorchvision) {
  const Recorded recorded;
  const auto parameters = declared_by(base_config());
  EXPECT_EQ(parameters.size(), recorded.shapes.size());
  for (const auto& [name, shape] : recorded.shapes)
    EXPECT_EQ(parameters.at("trunk/" + name).shape, shape) << name;
  const shard::Init& weight = parameters.at("trunk/features.1.0.block.0.weight").init;
  EXPECT_EQ(weight.kind, shard::Init::Kind::normal);
  EXPECT_EQ(weight.std, 0.02);
  EXPECT_EQ(parameters.at("trunk/features.1.0.layer_scale").init.value, 1e-6);
  EXPECT_EQ(parameters.at("trunk/features.1.0.block.3.bias").init.kind, shard::Init::Kind::zeros);

  models::ParameterList list;
  const ConvnextTrunk trunk(base_config(), models::Recompute::none, list);
  const std::vector<models::Tap> taps = trunk.taps(48, 40);
  ASSERT_EQ(taps.size(), 6u);
  EXPECT_EQ(taps[0].shape, (Sizes{12, 10, 8}));
  EXPECT_EQ(taps[4].name, "stage4");
  EXPECT_EQ(taps[4].shape, (Sizes{1, 1, 32}));
  EXPECT_EQ(taps[5].name, trunk.pooled_taps().back());
}

// ---- gradients and bits

const std::vector<models::ImageGroup> kTwoSizes = {{.per_example = 2, .height = 32, .width = 24},
                                                   {.per_example = 1, .height = 16, .width = 20}};
models::ConvnextConfig small_config(double drop_path = 0) {
  return {.depths = {2, 1}, .widths = {8, 12}, .layer_scale = 0.5, .drop_path = drop_path};
}

// The derivative along a tensor's gradient is the gradient's norm.
TEST(Convnext, GradientsAgainstDifferences) {
  for (const double drop_path : {0.0, 0.5}) {
    TrunkWorld world(small_config(drop_path), 4, kTwoSizes, models::Recompute::none, 2);
    world.loss();
    for (const auto& [path, gradient] : world.gradients()) {
      const double norm = one_rank::norm_of(gradient);
      ASSERT_GT(norm, 1e-4) << path;
      const double slope = one_rank::slope_along(gradient, world.stores.weight(path), 0.01 / norm,
                                                 [&] { return world.loss(); });
      EXPECT_NEAR(slope, norm, 0.01 * norm + 1e-3) << path;
    }
  }
}

// Recomputing gives the same bits, and each policy needs less memory than the one before.
TEST(Convnext, RecomputedPartsHaveTheSameBits) {
  for (const DType operands : {DType::f32, DType::bf16}) {
    TrunkWorld kept(small_config(0.5), 4, kTwoSizes, models::Recompute::none, 2, operands);
    const double loss = kept.loss();
    int64_t peak = kept.stores.arena().peak();
    for (const auto recompute :
         {models::Recompute::gelu, models::Recompute::mlp, models::Recompute::block}) {
      TrunkWorld again(small_config(0.5), 4, kTwoSizes, recompute, 2, operands);
      EXPECT_EQ(again.loss(), loss);
      EXPECT_EQ(again.gradients(), kept.gradients());
      EXPECT_LE(again.stores.arena().peak(), peak);
      peak = again.stores.arena().peak();
    }
  }
}

// Nothing is dropped in evaluation, and the outputs are those of a pass that keeps its tensors.
TEST(Convnext, EvaluatesWithoutDropping) {
  TrunkWorld dropping(small_config(0.9), 4, kTwoSizes, models::Recompute::none),
      plain(small_config(), 4, kTwoSizes, models::Recompute::none);
  plain.loss();
  const Floats trained = plain.features;
  EXPECT_EQ(dropping.evaluated(), trained);
  EXPECT_EQ(plain.evaluated(), trained);
  dropping.loss();
  EXPECT_NE(dropping.features, trained);
}

// An image's draw belongs to its number in the global batch, whatever pass holds it.
TEST(Convnext, DrawsCountExamples) {
  models::ConvnextLayer layer;
  layer.drop_path = 0.4f;
  layer.number = 3;
  models::ParameterList list;
  list.begin_block("block");
  list.add("x", {1}, {});
  one_rank::Stores stores(list.parameters(), list.blocks(), {.batch = 8});
  stores.make_arena(1 << 16);
  auto draws = [&](int64_t first, int64_t batch, int64_t group) {
    nn::Context ctx = stores.context(true);
    ctx.first_example = first;
    ctx.batch = batch;
    ctx.dropout = base::Stream(1, "step");
    models::ConvnextLayer::Kept kept;
    kept.size.per_example = 2;
    layer.place(ctx, group, kept);
    const View f = kept.saved.factor;
    return Floats(f.f32(), f.f32() + f.count);
  };
  const Floats all = draws(0, 8, 0);
  Floats parts = draws(0, 3, 0);
  for (float f : draws(3, 5, 0)) parts.push_back(f);
  EXPECT_EQ(parts, all);
  EXPECT_NE(draws(0, 8, 1), all);
  for (float f : all) EXPECT_TRUE(f == 0 || f == 1 / (1 - 0.4f)) << f;
}

// ---- keys

std::string key_problems(const std::string& text) {
  struct TrunkRoot {
    models::TrunkOptions trunk;
    void bind(config::Table& t) { t.table("trunk", trunk, ""); }
  } root;
  const config::Deck deck({"deck.toml", "[trunk]\nkind = \"convnext\"\n" + text, {}}, root);
  try {
    deck.throw_if_any();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

TEST(Convnext, KeysAreChecked) {
  EXPECT_EQ(key_problems("drop_path = 0.1\n"), "");
  EXPECT_EQ(key_problems("depths = [2, 2]\nwidths = [16, 32]\nlayer_scale = 1.0\n"), "");
  for (auto [text, part] : {std::pair{"depths = [1, 1]\n", "depths has 2 stages and widths has 4"},
                            {"depths = []\nwidths = []\n", "needs one to eight stages"},
                            {"depths = [0, 1, 1, 1]\n", "depths"},
                            {"drop_path = 1.0\n", "drop_path"}})
    EXPECT_NE(key_problems(text).find(part), std::string::npos) << key_problems(text);
  EXPECT_NE(models::ConvnextTrunkOptions().image_problem(224, 24), "");
  EXPECT_EQ(models::ConvnextTrunkOptions().image_problem(32, 48), "");
}

}  // namespace
