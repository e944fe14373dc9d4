// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "models/resnet.hpp"

namespace models {
namespace {

const std::map<int64_t, std::array<int64_t, 4>> kBlocks = {  // ssl.md 1.1
    {18, {2, 2, 2, 2}},   {34, {3, 4, 6, 3}},   {50, {3, 4, 6, 3}},
    {101, {3, 4, 23, 3}}, {152, {3, 8, 36, 3}}, {200, {3, 24, 36, 3}}};

}  // namespace

std::optional<std::array<int64_t, 4>> resnet_blocks(int64_t depth) {
  const auto found = kBlocks.find(depth);
  if (found == kBlocks.end()) return {};
  return found->second;
}

void ResnetTrunkOptions::bind(config::Table& t) {
  auto never = config::OnResume::never;
  ResnetConfig& c = config;
  t.key("depth", depth, "layers: 18 or 34 (basic blocks), 50, 101, 152 or 200 (bottlenecks)")
      .on_resume(never);
  t.key("width", c.width,
        "channels of the stem; stages have 1, 2, 4 and 8 times as many, bottlenecks 4 times that")
      .min(1)
      .max(4096)
      .on_resume(never);
  t.key("groups", c.groups, "groups of the 3x3 convolutions of bottlenecks")
      .min(1)
      .max(4096)
      .on_resume(never);
  t.key("width_per_group", c.width_per_group,
        "inner channels of a bottleneck for each group, per 64 channels of its stage")
      .min(1)
      .max(4096)
      .on_resume(never);
  t.key("layer4_stride", c.layer4_stride, "stride of the last stage: 2, or 1 for a finer map")
      .min(1)
      .max(2)
      .on_resume(never);
  t.key("group_examples", c.group_examples,
        "batch norm takes its statistics over so many consecutive examples of the global batch, "
        "whatever ranks hold them; 0: over all of them, which no accumulation may split. The "
        "published statistics per rank are those of the examples of a rank")
      .min(0)
      .max(1 << 24)
      .unit("examples");
  t.choice("init", c.init, {{"uniform", ResnetInit::uniform}, {"kaiming", ResnetInit::kaiming}},
           "initial weights: uniform in +-1/sqrt(fan_in), as in published self-supervised runs; "
           "kaiming: normal with 2/fan_out, as in torchvision");
  t.key("zero_last_scale", c.zero_last_scale,
        "the last scale of each block begins at 0, so that a block begins as its shortcut");
  if (const auto blocks = resnet_blocks(depth)) {
    c.blocks = *blocks;
    c.bottleneck = has_bottlenecks(depth);
  } else {
    t.error("depth",
            fmt::format("{} is no depth of a ResNet; give 18, 34, 50, 101, 152 or 200", depth));
  }
  if (!c.bottleneck && (c.groups != 1 || c.width_per_group != 64))
    t.error(c.groups != 1 ? "groups" : "width_per_group",
            fmt::format("depth {} has basic blocks, which have no groups; use depth 50 or more",
                        depth));
  if (c.bottleneck && c.width > 0 && c.width * c.width_per_group < 64)
    t.error("width", fmt::format("{} with width_per_group = {} leaves bottlenecks without channels",
                                 c.width, c.width_per_group));
}

std::unique_ptr<Trunk> ResnetTrunkOptions::make(int64_t, int64_t, Recompute recompute,
                                                ParameterList& list) const {
  return std::make_unique<ResnetTrunk>(config, recompute, list);
}

}  // namespace models
