// SPDX-License-Identifier: Apache-2.0
// The levels of trunks, by which optimizer.layer_decay scales the learning rate.
#include <gtest/gtest.h>

#include <map>

#include "models/trunks/convolutional/convnext.hpp"
#include "models/trunks/convolutional/resnet.hpp"
#include "models/trunks/vit.hpp"

using namespace models;

namespace {

std::map<std::string, int> levels_of(const ParameterList& list) {
  std::map<std::string, int> out;
  for (const shard::Parameter& p : list.parameters()) out[p.path] = p.level;
  return out;
}

}  // namespace

TEST(Levels, OfAVit) {
  ParameterList list;
  const VitConfig config{.image_height = 16,
                         .image_width = 16,
                         .patch_height = 8,
                         .patch_width = 8,
                         .depth = 2,
                         .width = 8,
                         .mlp = 8,
                         .heads = 1,
                         .class_token = true};
  const Vit vit(config, Recompute::none, list);
  list.begin_block("head");
  list.add("head/kernel", {8, 2}, ParameterList::zeros());
  std::map<std::string, int> levels = levels_of(list);
  EXPECT_EQ(levels.at("encoder/pos_embedding"), 0);
  EXPECT_EQ(levels.at("encoder/cls"), 0);
  EXPECT_EQ(levels.at("encoder/Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"), 1);
  EXPECT_EQ(levels.at("encoder/Transformer/encoderblock_1/LayerNorm_1/scale"), 2);
  EXPECT_EQ(levels.at("encoder/Transformer/encoder_norm/scale"), -1);
  EXPECT_EQ(levels.at("head/kernel"), -1);
}

TEST(Levels, OfConvolutionalTrunks) {
  ParameterList list;
  const ResnetTrunk resnet({.blocks = {2, 1, 1, 1}, .bottleneck = false, .width = 8},
                           Recompute::none, list);
  list.begin_block("head");
  list.add("head/kernel", {8, 2}, ParameterList::zeros());
  std::map<std::string, int> levels = levels_of(list);
  EXPECT_EQ(levels.at("trunk/conv1.weight"), 0);
  EXPECT_EQ(levels.at("trunk/layer1.1.conv2.weight"), 2);
  EXPECT_EQ(levels.at("trunk/layer4.0.bn2.bias"), 5);
  EXPECT_EQ(levels.at("head/kernel"), -1);
  ParameterList other;
  ConvnextConfig config;
  config.depths = {1, 2};
  config.widths = {8, 16};
  const ConvnextTrunk convnext(config, Recompute::none, other);
  levels = levels_of(other);
  EXPECT_EQ(levels.at("trunk/features.0.0.weight"), 0);
  EXPECT_EQ(levels.at("trunk/features.2.1.weight"), 2);
  EXPECT_EQ(levels.at("trunk/features.3.1.block.0.weight"), 4);
}
