// SPDX-License-Identifier: Apache-2.0
// Keys of a ConvNeXt, and its declarations about its tensors (TrunkWeights).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "models/trunks/convolutional/convnext.hpp"

namespace models {
namespace {

constexpr size_t kMostStages = 8;

// Counts the blocks of each stage, and reads their channels.
std::optional<TrunkForm> convnext_form(const TensorShapes& shapes) {
  std::vector<int64_t> depths, widths;
  for (const auto& [path, shape] : shapes) {
    int64_t part = 0, block = 0;
    if (!path.ends_with(".block.0.weight") || shape.empty()) continue;
    if (std::sscanf(path.c_str(), "trunk/features.%ld.%ld.", &part, &block) != 2) continue;
    if (part < 1 || part % 2 == 0 || part > int64_t(2 * kMostStages) || block < 0) continue;
    const size_t stage = size_t(part / 2);
    depths.resize(std::max(depths.size(), stage + 1));
    widths.resize(depths.size());
    depths[stage] = std::max(depths[stage], block + 1);
    widths[stage] = shape[0];
  }
  if (depths.empty()) return {};
  return TrunkForm{{},
                   fmt::format("a ConvNeXt of {} blocks with {} channels", fmt::join(depths, "+"),
                               fmt::join(widths, "+")),
                   fmt::format("kind = \"convnext\"\ndepths = [{}]\nwidths = [{}]\n",
                               fmt::join(depths, ", "), fmt::join(widths, ", "))};
}

}  // namespace

TrunkWeights convnext_weights() {
  return {.torch = TorchTrunk{.plural = "ConvNeXts",
                              .root = "trunk/",
                              .parts = {"features", "classifier"},
                              .mark = "features.1.0.block.0.weight",
                              .head = "classifier.2."},
          .form = convnext_form};
}

void ConvnextTrunkOptions::bind(config::Table& t) {
  auto never = config::OnResume::never;
  ConvnextConfig& c = config;
  t.key("depths", c.depths,
        "blocks of each stage; published sizes have 3, 3, 9, 3 (T) or 3, 3, 27, 3 (S, B, L)")
      .min(1)
      .max(1000)
      .on_resume(never)
      .check([&c] {
        return std::string(
            c.depths.empty() || c.depths.size() > kMostStages ? "needs one to eight stages" : "");
      });
  t.key("widths", c.widths,
        "channels of each stage; published sizes begin with 96 (T, S), 128 (B) or 192 (L), and "
        "double them from stage to stage")
      .min(1)
      .max(65536)
      .on_resume(never);
  t.key("layer_scale", c.layer_scale,
        "initial factor of each channel at the end of a block; the authors leave these out of the "
        "decay of weights (a rule that matches \".*layer_scale\")");
  t.key("drop_path", c.drop_path,
        "probability that the branch of the last block is left out for an image in training; it "
        "grows evenly from 0 at the first block. Published: 0.1 (T), 0.4 (S), 0.5 (B, L)")
      .min(0)
      .max(0.99);
  if (c.widths.size() != c.depths.size())
    t.error(t.has("depths") || !t.has("widths") ? "depths" : "widths",
            fmt::format("depths has {} stages and widths has {}; give both the same number",
                        c.depths.size(), c.widths.size()));
}

std::string ConvnextTrunkOptions::image_problem(int64_t height, int64_t width) const {
  int64_t least = 4;
  for (size_t stage = 1; stage < config.depths.size(); ++stage) least *= 2;
  if (std::min(height, width) >= least) return "";
  return fmt::format("{} is too small for {} stages of a ConvNeXt, which need {}",
                     std::min(height, width), config.depths.size(), least);
}

std::unique_ptr<Trunk> ConvnextTrunkOptions::make(int64_t, int64_t, Recompute recompute,
                                                  ParameterList& list) const {
  return std::make_unique<ConvnextTrunk>(config, recompute, list);
}

}  // namespace models
