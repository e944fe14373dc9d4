// SPDX-License-Identifier: Apache-2.0
// Tests ResNets: numbers of parameters, running values and products against the published ones
// (ssl.md 1.1), names, taps, keys, and gradients of a classifier with such a trunk. The golden
// runner compares values with those of the published code.
#include "models/trunks/convolutional/resnet.hpp"

#include <gtest/gtest.h>

#include <map>

#include "config/table.hpp"
#include "models/classes/class_model.hpp"
#include "one_rank.hpp"

namespace {

using device::DType;
using device::View;
using Floats = std::vector<float>;

models::ResnetConfig published(int64_t depth) {
  return {.blocks = *models::resnet_blocks(depth), .bottleneck = models::has_bottlenecks(depth)};
}

struct ResnetSizes {
  int64_t parameters = 0, tensors = 0, running = 0;
  double multiply_adds = 0;
};
ResnetSizes sizes_of(const models::ResnetConfig& config) {
  models::ParameterList list;
  const models::ResnetTrunk trunk(config, models::Recompute::none, list);
  ResnetSizes s;
  for (const shard::Parameter& p : list.parameters()) {
    int64_t count = 1;
    for (int64_t d : p.shape) count *= d;
    if (p.trained()) {
      s.parameters += count;
      ++s.tensors;
    } else if (!p.shape.empty()) {
      s.running += count;
    }
  }
  const models::ImageGroup images{.height = 224, .width = 224};
  s.multiply_adds = double(trunk.forward_flops({&images, 1})) / 2;
  return s;
}

TEST(Resnet, HasThePublishedSizes) {
  auto expect = [](const ResnetSizes& got, int64_t parameters, int64_t tensors, int64_t running,
                   double multiply_adds) {
    EXPECT_EQ(got.parameters, parameters);
    EXPECT_EQ(got.tensors, tensors);
    EXPECT_EQ(got.running, running);
    if (multiply_adds > 0) {
      EXPECT_NEAR(got.multiply_adds, multiply_adds, 1e-4 * multiply_adds);
    }
  };
  expect(sizes_of(published(18)), 11176512, 60, 9600, 1.8136e9);
  expect(sizes_of(published(34)), 21284672, 108, 17024, 3.6632e9);
  expect(sizes_of(published(50)), 23508032, 159, 53120, 4.0871e9);
  expect(sizes_of(published(101)), 42500160, 312, 105344, 7.7994e9);
  expect(sizes_of(published(152)), 58143808, 465, 151424, 0);
  models::ResnetConfig config = published(50);
  config.groups = 32;
  config.width_per_group = 4;
  expect(sizes_of(config), 22979904, 159, 68224, 0);
  config = published(101);
  config.groups = 32;
  config.width_per_group = 8;
  expect(sizes_of(config), 86742336, 312, 202880, 0);
  config = published(50);
  config.width = 128;
  expect(sizes_of(config), 93907072, 159, 106240, 0);
}

TEST(Resnet, NamesParametersAndTapsAsPublished) {
  models::ParameterList list;
  models::ResnetConfig config = published(50);
  const models::ResnetTrunk trunk(config, models::Recompute::none, list);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const shard::Parameter& p : list.parameters()) shapes[p.path] = p.shape;
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(shapes.at("trunk/conv1.weight"), (Sizes{64, 3, 7, 7}));
  EXPECT_EQ(shapes.at("trunk/layer1.0.downsample.0.weight"), (Sizes{256, 64, 1, 1}));
  EXPECT_EQ(shapes.at("trunk/layer3.5.conv2.weight"), (Sizes{256, 256, 3, 3}));
  EXPECT_EQ(shapes.at("trunk/layer4.2.bn3.running_var"), (Sizes{2048}));
  EXPECT_EQ(shapes.at("trunk/layer2.0.downsample.1.num_batches_tracked"), Sizes{});
  EXPECT_EQ(shapes.count("trunk/layer1.1.downsample.0.weight"), 0u);
  const std::vector<models::Tap> taps = trunk.taps(225, 200);
  ASSERT_EQ(taps.size(), 8u);
  EXPECT_EQ(taps[0].name, "conv1");
  EXPECT_EQ(taps[0].shape, (Sizes{113, 100, 64}));
  EXPECT_EQ(taps[1].shape, (Sizes{57, 50, 64}));
  EXPECT_EQ(taps[5].name, "res5");
  EXPECT_EQ(taps[5].shape, (Sizes{8, 7, 2048}));
  EXPECT_EQ(taps[7].name, trunk.pooled_taps().back());
  config.layer4_stride = 1;
  models::ParameterList other;
  EXPECT_EQ(models::ResnetTrunk(config, models::Recompute::none, other).taps(64, 64)[5].shape,
            (Sizes{4, 4, 2048}));
}

// Group norm has the parameters of batch norm, by name and number, and no running values.
TEST(Resnet, GroupNormHasTheSameParameters) {
  for (int64_t depth : {18, 50}) {
    models::ResnetConfig config = published(depth);
    models::ParameterList batch, group;
    const models::ResnetTrunk with_batch_norm(config, models::Recompute::none, batch);
    config.norm = models::ResnetNorm::group;
    const models::ResnetTrunk with_group_norm(config, models::Recompute::none, group);
    std::vector<std::string> want, got;
    for (const shard::Parameter& p : batch.parameters())
      if (p.trained()) want.push_back(p.path);
    for (const shard::Parameter& p : group.parameters()) got.push_back(p.path);
    EXPECT_EQ(got, want);
    EXPECT_NE(with_batch_norm.changing_arguments(), "");
    EXPECT_EQ(with_group_norm.changing_arguments(), "");
  }
}

// torchvision draws a convolution's weights by the fan-out of all groups together, torch by the
// fan-in of one group (ssl.md 1.5).
TEST(Resnet, DrawsConvolutionsAsPublished) {
  for (const auto init : {models::ResnetInit::kaiming, models::ResnetInit::uniform})
    for (int64_t groups : {1, 4}) {
      models::ResnetConfig config = published(50);
      config.init = init;
      config.groups = groups;
      models::ParameterList list;
      const models::ResnetTrunk trunk(config, models::Recompute::none, list);
      int convolutions = 0;
      for (const shard::Parameter& p : list.parameters()) {
        if (p.shape.size() != 4) continue;
        ++convolutions;
        const double pixels = double(p.shape[2] * p.shape[3]);
        if (init == models::ResnetInit::kaiming) {
          EXPECT_EQ(p.init.kind, shard::Init::Kind::normal);
          EXPECT_NEAR(p.init.std, std::sqrt(2 / (double(p.shape[0]) * pixels)), 1e-12) << p.path;
        } else {
          EXPECT_EQ(p.init.kind, shard::Init::Kind::uniform);
          EXPECT_NEAR(p.init.value, 1 / std::sqrt(double(p.shape[1]) * pixels), 1e-12) << p.path;
        }
      }
      EXPECT_EQ(convolutions, 53);
    }
}

// Scales begin at 1, or at 0 for the last one of each block; shortcuts keep theirs.
TEST(Resnet, TheLastScaleOfABlockMayBeginAtZero) {
  for (const bool bottleneck : {false, true})
    for (const bool zero : {false, true}) {
      models::ResnetConfig config = published(bottleneck ? 50 : 18);
      config.zero_last_scale = zero;
      models::ParameterList list;
      const models::ResnetTrunk trunk(config, models::Recompute::none, list);
      const std::string last = bottleneck ? "bn3.weight" : "bn2.weight";
      for (const shard::Parameter& p : list.parameters()) {
        const bool scale = p.path.ends_with("bn1.weight") || p.path.ends_with("bn2.weight") ||
                           p.path.ends_with("bn3.weight") ||
                           p.path.ends_with("downsample.1.weight");
        if (!scale) continue;
        EXPECT_EQ(p.init.kind, zero && p.path.ends_with(last) ? shard::Init::Kind::zeros
                                                              : shard::Init::Kind::ones)
            << p.path;
      }
    }
}

// ---- a classifier with a small ResNet

class ResnetWorld {
 public:
  ResnetWorld(const models::ResnetConfig& config, int64_t batch, models::Recompute recompute,
              int64_t slices = 1, DType operands = DType::f32)
      : model(options(config), {.recompute = recompute}),
        stores(model.parameters(), model.blocks(),
               {.batch = batch, .slices = slices, .operands = operands, .threads = 2}),
        sums_(size_t(slices) * size_t(model.sum_columns())) {
    base::Stream s(3, "made batch");
    for (int64_t i = 0; i < batch * kPixels; ++i)
      image_.push_back(2 * s.sub(0).uniform(uint64_t(i)) - 1);
    for (int64_t b = 0; b < batch; ++b) label_.push_back(int32_t(s.sub(1).bits(uint64_t(b)) % 5));
    inputs_["image"] = device::view(image_.data(), batch * kPixels);
    inputs_["label"] = device::view(label_.data(), batch);
    stores.make_arena_for([&](nn::Context& train, nn::Context&) { run_pass(train); });
    stores.weights.initialise(5);
    const View head = stores.weight("head/kernel");
    for (int64_t i = 0; i < head.count; ++i)
      head.f32()[i] = 0.3f * float(base::Stream(5, "head").normal(uint64_t(i)));
    stores.weights.publish();
  }
  double loss() {
    stores.train([&](nn::Context& ctx) { run_pass(ctx); });
    double sum = 0;
    for (size_t i = 0; i < sums_.size(); i += size_t(model.sum_columns())) sum += sums_[i];
    return sum / double(stores.batch());
  }
  // Returns the gradients of the trained parameters, by path.
  std::map<std::string, Floats> gradients() const {
    std::map<std::string, Floats> out;
    for (const shard::Parameter& p : stores.layout.parameters())
      if (p.trained()) out[p.path] = stores.gradient_values(p.path);
    return out;
  }

  models::ClassModel model;
  one_rank::Stores stores;

 private:
  static constexpr int64_t kSize = 32, kPixels = kSize * kSize * 3;
  static models::ClassifierOptions options(const models::ResnetConfig& config) {
    models::ClassifierOptions o;
    o.image_size = kSize;
    o.num_classes = 5;
    auto trunk = std::make_shared<models::ResnetTrunkOptions>();
    trunk->config = config;
    o.trunk = {"resnet", trunk};
    return o;
  }
  void run_pass(nn::Context& ctx) {
    train_->run(ctx, inputs_, ctx.batch, {sums_.data(), DType::f64, int64_t(sums_.size())});
  }
  std::unique_ptr<models::TrainPass> train_ = model.make_train_pass();
  std::vector<double> sums_;
  Floats image_;
  std::vector<int32_t> label_;
  models::Inputs inputs_;
};

models::ResnetConfig small_resnet(bool bottleneck, bool group_norm = false) {
  models::ResnetConfig c{.blocks = {2, 1, 1, 1}, .bottleneck = bottleneck, .width = 8};
  if (group_norm) c.norm = models::ResnetNorm::group;
  c.norm_groups = 4;
  return c;
}

// The derivative along a tensor's gradient is the gradient's norm.
TEST(Resnet, GradientsAgainstDifferences) {
  for (auto [bottleneck, group_norm] : {std::pair{false, false}, {true, false}, {false, true}}) {
    ResnetWorld world(small_resnet(bottleneck, group_norm), 8, models::Recompute::none);
    world.loss();
    for (const auto& [path, gradient] : world.gradients()) {
      const double norm = one_rank::norm_of(gradient);
      ASSERT_GT(norm, 1e-4) << path;
      // Steps are short where the loss is steep, so that few ReLUs change sides.
      const double slope =
          one_rank::slope_along(gradient, world.stores.weight(path), 0.004 / std::max(norm, 10.0),
                                [&] { return world.loss(); });
      EXPECT_NEAR(slope, norm, 0.03 * norm + 1e-3) << path;
    }
  }
}

// Blocks that are computed again have the same bits, and need less memory.
TEST(Resnet, RecomputedBlocksHaveTheSameBits) {
  for (DType operands : {DType::f32, DType::bf16})
    for (auto [slices, group_norm] : {std::pair{1, false}, {4, false}, {4, true}}) {
      const models::ResnetConfig config = small_resnet(true, group_norm);
      ResnetWorld kept(config, 8, models::Recompute::none, slices, operands),
          again(config, 8, models::Recompute::block, slices, operands);
      EXPECT_EQ(kept.loss(), again.loss());
      const std::map<std::string, Floats> want = kept.gradients(), got = again.gradients();
      for (const auto& [path, gradient] : want) EXPECT_EQ(gradient, got.at(path)) << path;
      EXPECT_LT(again.stores.arena().peak(), kept.stores.arena().peak());
    }
}

// ---- keys

std::string problems_of(const std::string& text) {
  struct TrunkRoot {
    models::TrunkOptions trunk;
    void bind(config::Table& t) { t.table("trunk", trunk, ""); }
  } root;
  const config::Deck deck({"deck.toml", "[trunk]\nkind = \"resnet\"\n" + text, {}}, root);
  try {
    deck.throw_if_any();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

TEST(Resnet, KeysAreChecked) {
  EXPECT_EQ(problems_of("depth = 18\nwidth = 16\n"), "");
  EXPECT_EQ(problems_of("groups = 32\nwidth_per_group = 4\nlayer4_stride = 1\n"), "");
  EXPECT_EQ(problems_of("norm = \"group\"\n"), "");
  EXPECT_EQ(problems_of("norm = \"group\"\nwidth = 12\nnorm_groups = 1\n"), "");
  for (auto [text, part] :
       {std::pair{"depth = 20\n", "20 is not a depth of a ResNet"},
        {"depth = 18\ngroups = 2\n", "depth 18 has basic blocks"},
        {"layer4_stride = 3\n", "layer4_stride"},
        {"norm_groups = 16\n", "trunk.norm_groups: 16 groups of channels are of no use"},
        {"norm = \"group\"\nnorm_groups = 24\n",
         "trunk.norm_groups: the channels of some layers cannot be cut into 24 equal groups; give "
         "a "
         "divisor of 64"},
        {"norm = \"group\"\ngroups = 2\nwidth_per_group = 24\n", "give a divisor of 16"},
        {"norm = \"group\"\nnorm_groups = 0\n", "norm_groups"},
        {"norm = \"group\"\ngroup_examples = 8\n",
         "trunk.group_examples: 8 examples could share statistics only with norm = \"batch\""},
        {"norm = \"layer\"\n", "trunk.norm"},
        {"width = 8\nwidth_per_group = 4\n", "leaves bottlenecks without channels"}})
    EXPECT_NE(problems_of(text).find(part), std::string::npos) << problems_of(text);
}

}  // namespace
