// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <numeric>

#include "models/trunks/convolutional/resnet.hpp"

namespace models {
namespace {

const std::map<int64_t, std::array<int64_t, 4>> kBlocks = {  // ssl.md 1.1
    {18, {2, 2, 2, 2}},   {34, {3, 4, 6, 3}},   {50, {3, 4, 6, 3}},
    {101, {3, 4, 23, 3}}, {152, {3, 8, 36, 3}}, {200, {3, 24, 36, 3}}};

// Returns the largest number that divides the channels of all norms.
int64_t common_divisor_of_channels(const ResnetConfig& c) {
  int64_t divisor = c.width;
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t planes = c.width << stage;
    divisor = std::gcd(divisor, planes);
    if (c.bottleneck) divisor = std::gcd(divisor, planes * c.width_per_group / 64 * c.groups);
  }
  return divisor;
}

// Refuses values of keys that the norm does not have, and groups that do not divide the channels.
void check_norm(config::Table& t, const ResnetConfig& c) {
  if (c.norm == ResnetNorm::batch) {
    if (c.norm_groups != ResnetConfig().norm_groups)
      t.error("norm_groups", fmt::format("{} groups of channels are of no use with norm = "
                                         "\"batch\"; leave the key out, or set norm = \"group\"",
                                         c.norm_groups));
    return;
  }
  if (c.group_examples != 0)
    t.error("group_examples", fmt::format("{} examples could share statistics only with norm = "
                                          "\"batch\", and norm is \"group\"; leave the key out",
                                          c.group_examples));
  if (c.norm_groups < 1) return;  // min(1) reports it
  const int64_t divisor = common_divisor_of_channels(c);
  if (divisor % c.norm_groups != 0)
    t.error("norm_groups",
            fmt::format("the channels of some layers cannot be cut into {} equal groups; give a "
                        "divisor of {}, or change width = {}{}",
                        c.norm_groups, divisor, c.width,
                        c.bottleneck ? fmt::format(", groups = {} or width_per_group = {}",
                                                   c.groups, c.width_per_group)
                                     : ""));
}

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
        "whatever ranks hold them; 0: over all of them, which no accumulation may split. For "
        "the published statistics per rank, give the number of examples per rank")
      .min(0)
      .max(1 << 24)
      .unit("examples");
  t.choice(
       "norm", c.norm, {{"batch", ResnetNorm::batch}, {"group", ResnetNorm::group}},
       "what follows each convolution: batch norm, or group norm, whose statistics are those of "
       "an image and a group of its channels: it has no running values, and ranks exchange no "
       "statistics")
      .on_resume(never);
  t.key("norm_groups", c.norm_groups,
        "groups of channels of norm = \"group\"; 1: all channels of an image share statistics")
      .min(1)
      .max(4096);
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
            fmt::format("{} is not a depth of a ResNet; give 18, 34, 50, 101, 152 or 200", depth));
  }
  if (!c.bottleneck && (c.groups != 1 || c.width_per_group != 64))
    t.error(c.groups != 1 ? "groups" : "width_per_group",
            fmt::format("depth {} has basic blocks, which have no groups; use depth 50 or more",
                        depth));
  if (c.bottleneck && c.width > 0 && c.width * c.width_per_group < 64)
    t.error("width", fmt::format("{} with width_per_group = {} leaves bottlenecks without channels",
                                 c.width, c.width_per_group));
  else
    check_norm(t, c);
}

std::unique_ptr<Trunk> ResnetTrunkOptions::make(int64_t, int64_t, Recompute recompute,
                                                ParameterList& list) const {
  return std::make_unique<ResnetTrunk>(config, recompute, list);
}

}  // namespace models
