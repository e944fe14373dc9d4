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

// Counts the blocks of each stage, and reads channels and groups.
std::optional<TrunkForm> resnet_form(const TensorShapes& shapes) {
  std::array<int64_t, 4> blocks{};
  bool bottleneck = false;
  for (const auto& [path, shape] : shapes) {
    int64_t stage = 0, block = 0;
    if (std::sscanf(path.c_str(), "trunk/layer%ld.%ld.", &stage, &block) != 2) continue;
    if (stage < 1 || stage > 4 || block < 0) continue;
    blocks[size_t(stage - 1)] = std::max(blocks[size_t(stage - 1)], block + 1);
    if (path.ends_with(".conv3.weight")) bottleneck = true;
  }
  auto side = [&](const char* path, size_t axis) {
    const auto found = shapes.find(std::string("trunk/") + path);
    return found != shapes.end() && found->second.size() == 4 ? found->second[axis] : 0;
  };
  const int64_t channels = side("conv1.weight", 0);
  if (channels <= 0) return {};
  const int64_t depth =
      2 + (bottleneck ? 3 : 2) * std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  TrunkForm form{{{"model.trunk.depth", "depth", depth}, {"model.trunk.width", "width", channels}},
                 fmt::format("a ResNet-{} of {} blocks, {} channels after conv1", depth,
                             fmt::join(blocks, "+"), channels)};
  form.deck = fmt::format("kind = \"resnet\"\ndepth = {}\nwidth = {}\n", depth, channels);
  const int64_t inner = side("layer1.0.conv2.weight", 0),
                per_group = side("layer1.0.conv2.weight", 1);
  // A file may claim any sizes.
  constexpr int64_t kMost = int64_t{1} << 24;
  if (bottleneck && per_group > 0 && inner >= per_group && inner % per_group == 0 &&
      inner < kMost && channels < kMost) {
    const int64_t groups = inner / per_group;
    if (groups != 1) form.deck += fmt::format("groups = {}\n", groups);
    // A bottleneck has width * groups * width_per_group / 64 channels within.
    if (const int64_t of_group = inner * 64 / (channels * groups); of_group != 64)
      form.deck += fmt::format("width_per_group = {}\n", of_group);
  }
  if (shapes.contains("trunk/bn1.weight") && !shapes.contains("trunk/bn1.running_mean"))
    form.deck += "norm = \"group\"\n";
  return form;
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
