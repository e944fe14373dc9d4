// SPDX-License-Identifier: Apache-2.0
// A ResNet's declarations about its tensors (TrunkWeights).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "models/trunks/convolutional/resnet.hpp"

namespace models {
namespace {

// Counts the blocks of each stage, and the channels after the first convolution.
std::optional<TrunkForm> resnet_form(const TensorShapes& shapes) {
  std::array<int64_t, 4> blocks{};
  int64_t convolutions = 2, channels = 0;
  for (const auto& [path, shape] : shapes) {
    int64_t stage = 0, block = 0;
    if (path == "trunk/conv1.weight" && !shape.empty()) channels = shape[0];
    if (std::sscanf(path.c_str(), "trunk/layer%ld.%ld.", &stage, &block) != 2) continue;
    if (stage < 1 || stage > 4 || block < 0) continue;
    blocks[size_t(stage - 1)] = std::max(blocks[size_t(stage - 1)], block + 1);
    if (path.ends_with(".conv3.weight")) convolutions = 3;
  }
  if (channels <= 0) return {};
  const int64_t depth =
      2 + convolutions * std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  return TrunkForm{
      {{"model.trunk.depth", "depth", depth}, {"model.trunk.width", "width", channels}},
      fmt::format("a ResNet-{} of {} blocks, {} channels after conv1", depth,
                  fmt::join(blocks, "+"), channels)};
}

}  // namespace

TrunkWeights resnet_weights() {
  return {.torch = TorchTrunk{.plural = "ResNets",
                              .root = "trunk/",
                              .parts = {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4"},
                              .mark = "layer1.0.conv1.weight"},
          .form = resnet_form};
}

}  // namespace models
