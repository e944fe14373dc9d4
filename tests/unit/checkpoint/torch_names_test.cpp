// SPDX-License-Identifier: Apache-2.0
// Tests names of ResNets in files of PyTorch programs: below every known prefix, with heads, with
// counters, and of another depth or width.
#include "checkpoint/torch_names.hpp"

#include <gtest/gtest.h>

#include "checkpoint/name_map.hpp"
#include "models/trunks/convolutional/resnet.hpp"

namespace {

using checkpoint::InitOptions;
using checkpoint::InitPlan;
using checkpoint::Wanted;
using device::DType;
using Shape = std::vector<int64_t>;
using Tensors = std::vector<std::pair<std::string, Shape>>;

const models::TrunkWeights kResnet = models::resnet_weights();

class TorchFile : public checkpoint::WeightFile {
 public:
  explicit TorchFile(const Tensors& tensors) : WeightFile("some.safetensors") {
    for (const auto& [name, shape] : tensors)
      add({name, shape, checkpoint::is_counter(name) ? DType::i64 : DType::f32, "F32"});
  }

 private:
  void seek(size_t) override {}
  void take(char*, int64_t) override {}
};

// Returns names and shapes of a small ResNet with basic blocks, as torchvision writes them.
Tensors resnet(const Shape& blocks = {1, 1, 1, 1}, int64_t width = 8) {
  Tensors out;
  auto norm = [&out](const std::string& at, int64_t channels) {
    for (const char* name : {".weight", ".bias", ".running_mean", ".running_var"})
      out.push_back({at + name, {channels}});
    out.push_back({at + ".num_batches_tracked", {}});
  };
  out.push_back({"conv1.weight", {width, 3, 7, 7}});
  norm("bn1", width);
  int64_t in = width;
  for (size_t stage = 0; stage < 4; ++stage) {
    const int64_t channels = width << stage;
    for (int64_t block = 0; block < blocks[stage]; ++block) {
      const std::string at = fmt::format("layer{}.{}", stage + 1, block);
      out.push_back({at + ".conv1.weight", {channels, in, 3, 3}});
      norm(at + ".bn1", channels);
      out.push_back({at + ".conv2.weight", {channels, channels, 3, 3}});
      norm(at + ".bn2", channels);
      if (in != channels) {
        out.push_back({at + ".downsample.0.weight", {channels, in, 1, 1}});
        norm(at + ".downsample.1", channels);
      }
      in = channels;
    }
  }
  return out;
}

// Returns the model's parameters: this trunk and a classifier's head.
std::vector<Wanted> model(const Tensors& trunk) {
  std::vector<Wanted> out;
  for (const auto& [name, shape] : trunk) out.push_back({"trunk/" + name, shape});
  out.push_back({"head/kernel", {64, 5}});
  out.push_back({"head/bias", {5}});
  return out;
}

Tensors below(const std::string& prefix, const Tensors& tensors, const Tensors& more = {}) {
  Tensors out;
  for (const auto& [name, shape] : tensors) out.push_back({prefix + name, shape});
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

InitPlan plan(const Tensors& tensors, const InitOptions& options = {}) {
  return checkpoint::plan_init(model(resnet()), TorchFile(tensors), options, kResnet);
}

std::string problem(const Tensors& tensors, const InitOptions& options = {},
                    const Tensors& trunk = resnet(), base::Exit code = base::Exit::checkpoint) {
  try {
    checkpoint::plan_init(model(trunk), TorchFile(tensors), options, kResnet);
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.what();
  }
  return "";
}
// The problem of a file with a ResNet of another form than the model's: keys of the deck are wrong.
std::string other_form(const Tensors& tensors, const Tensors& trunk) {
  return problem(tensors, {}, trunk, base::Exit::config);
}
void has_parts(const std::string& text, const std::vector<std::string>& fragments) {
  for (const std::string& f : fragments)
    EXPECT_NE(text.find(f), text.npos) << "'" << f << "' is not in:\n" << text;
}

TEST(TorchNames, TrunksBelowEveryPrefix) {
  const size_t count = resnet().size();
  for (const char* prefix : {"", "module.", "module.encoder_q.", "backbone.", "teacher.backbone.",
                             "trunk._feature_blocks.", "trunk.", "module.encoder.",
                             "classy_state_dict.base_model.model.trunk._feature_blocks."}) {
    const Tensors tensors = below(prefix, resnet(), {{"epoch", {1}}});
    const InitPlan found = plan(tensors);
    EXPECT_EQ(found.loads.size(), count) << prefix;
    for (const InitPlan::Load& l : found.loads) {
      EXPECT_EQ(l.wanted, l.source) << prefix;
      EXPECT_FALSE(l.whole());
    }
    EXPECT_EQ(found.missing.size(), 2u) << "the head stays random";
    EXPECT_EQ(found.unused.size(), 1u);
  }
}

TEST(TorchNames, TheEncoderThatIsEvaluatedCounts) {
  for (auto [one, other] : {std::pair{"module.encoder_k.", "module.encoder_q."},
                            {"student.module.backbone.", "teacher.module.backbone."}}) {
    const Tensors tensors = below(one, resnet(), below(other, resnet()));
    const InitPlan found = plan(tensors);
    EXPECT_EQ(found.loads.size(), resnet().size());
    for (const InitPlan::Load& l : found.loads)
      EXPECT_TRUE(tensors[l.source].first.starts_with(other)) << tensors[l.source].first;
    EXPECT_EQ(found.unused.size(), resnet().size());
  }
  const Tensors two = below("a.", resnet(), below("b.", resnet()));
  has_parts(problem(two), {"several ResNets", "\"a\", \"b\"", "init.map = { trunk = \"a\" }"});
  InitOptions options;
  options.map = {{"trunk", "b"}};
  const InitPlan found = plan(below("", two, {{"b.fc.bias", {5}}}), options);
  EXPECT_EQ(found.loads.size(), resnet().size());
  EXPECT_EQ(found.unused.size(), resnet().size() + 1) << "a head beside the trunk is no mistake";
  for (const InitPlan::Load& l : found.loads)
    EXPECT_TRUE(two[l.source].first.starts_with("b.")) << two[l.source].first;
}

TEST(TorchNames, HeadsOnRequest) {
  const Tensors fc = {{"fc.weight", {5, 64}}, {"fc.bias", {5}}};
  EXPECT_EQ(plan(below("", resnet(), fc)).loads.size(), resnet().size());
  InitOptions all;
  all.dont_load.clear();
  const InitPlan found = plan(below("", resnet(), fc), all);
  EXPECT_EQ(found.loads.size(), resnet().size() + 2);
  int64_t transposed = 0;
  for (const InitPlan::Load& l : found.loads) transposed += l.transpose;
  EXPECT_EQ(transposed, 1) << "fc.weight is [out, in]";
  has_parts(problem(resnet(), all),
            {"missing in the file: head/kernel [64, 5] (looked for fc.weight)"});
  has_parts(problem(below("", resnet(), {{"fc.weight", {9, 64}}, {"fc.bias", {9}}}), all),
            {"head/kernel: the file has [9, 64], this model [64, 5]"});
  const std::map<std::string, std::map<std::string, std::string>> names = {
      {"trunk._feature_blocks.",
       {{"heads.0.clf.0.weight", "head/clf.0.weight"},
        {"heads.1.prototypes0.weight", "head1/prototypes0.weight"}}},
      {"module.encoder_q.", {{"module.encoder_q.fc.2.bias", "head/clf.2.bias"}}},
      {"module.backbone.",
       {{"module.head.mlp.0.weight", "head/mlp.0.weight"},
        {"module.head.last_layer.weight_v", "head/prototypes0.weight_v"}}},
      {"module.",
       {{"module.projection_head.1.running_var", "head/projection_head.1.running_var"},
        {"module.prototypes.weight", "head/prototypes0.weight"}}}};
  for (const auto& [prefix, pairs] : names) {
    const auto translated =
        checkpoint::TorchNames::of(TorchFile(below(prefix, resnet())), *kResnet.torch);
    ASSERT_TRUE(translated) << prefix;
    for (const auto& [theirs, ours] : pairs) {
      EXPECT_EQ(translated->ours(theirs).value_or(""), ours) << theirs;
      EXPECT_EQ(translated->theirs(ours), theirs);
    }
    EXPECT_FALSE(translated->ours("queue")) << prefix;
  }
}

TEST(TorchNames, CountersAreWholeNumbersAndMayBeMissing) {
  Tensors old = resnet();
  std::erase_if(old, [](const auto& t) { return checkpoint::is_counter(t.first); });
  const InitPlan found = plan(old);
  EXPECT_EQ(found.loads.size(), old.size());
  EXPECT_EQ(found.missing.size(), resnet().size() - old.size() + 2);
  Tensors wrong = resnet();
  for (auto& [name, shape] : wrong)
    if (name == "bn1.num_batches_tracked") shape = {1};
  has_parts(problem(wrong), {"trunk/bn1.num_batches_tracked: the file has [1], this model []"});
}

TEST(TorchNames, AnotherDepthOrWidthIsRefused) {
  has_parts(other_form(resnet({1, 2, 1, 1}), resnet()),
            {"model.trunk.depth = 10: the file holds a ResNet-12 of 1+2+1+1 blocks, 8 channels "
             "after conv1",
             "this model has a ResNet-10 of 1+1+1+1 blocks", "make model.trunk the same",
             "only in the file: layer2.1.conv1.weight"});
  has_parts(other_form(resnet(), resnet({1, 1, 1, 2})),
            {"missing in the file: trunk/layer4.1.conv2.weight [64, 64, 3, 3] (looked for "
             "layer4.1.conv2.weight)"});
  has_parts(other_form(resnet({1, 1, 1, 1}, 16), resnet()),
            {"model.trunk.width = 8: ", "16 channels after conv1",
             "this model has a ResNet-10 of 1+1+1+1 blocks, 8 channels",
             "trunk/conv1.weight: the file has [16, 3, 7, 7], this model [8, 3, 7, 7]"});
}

// Files of this program keep their names: a map of one line loads the trunk alone.
TEST(TorchNames, OwnNamesNeedNoTranslation) {
  EXPECT_FALSE(
      checkpoint::TorchNames::of(TorchFile(below("params/trunk/", resnet())), *kResnet.torch));
  InitOptions options;
  options.map = {{"trunk", "params/trunk"}};
  const InitPlan found =
      plan(below("params/trunk/", resnet(), {{"params/head/clf.0.weight", {7, 64}}}), options);
  EXPECT_EQ(found.loads.size(), resnet().size());
  EXPECT_EQ(found.unmapped.size(), 2u);
  EXPECT_EQ(found.unused.size(), 1u);
}

}  // namespace
