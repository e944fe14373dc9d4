// SPDX-License-Identifier: Apache-2.0
// A ViT's declarations about its tensors (TrunkWeights).
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "models/trunks/vit.hpp"

namespace models {
namespace {

std::optional<TrunkForm> vit_form(const TensorShapes& shapes) {
  int64_t depth = 0, width = 0, mlp = 0, heads = 0, patch = 0;
  for (const auto& [path, shape] : shapes) {
    int64_t block = 0;
    if (path == "encoder/embedding/kernel" && shape.size() == 4) {
      patch = shape[0];
      width = shape[3];
    }
    if (std::sscanf(path.c_str(), "encoder/Transformer/encoderblock_%ld/", &block) != 1) continue;
    depth = std::max(depth, block + 1);
    if (path.ends_with("/MlpBlock_0/Dense_0/kernel") && shape.size() == 2) mlp = shape[1];
    if (path.ends_with("/query/kernel") && shape.size() == 3) heads = shape[1];
  }
  if (patch <= 0) return {};
  TrunkForm form{{{"model.trunk.depth", "depth", depth},
                  {"model.trunk.width", "width", width},
                  {"model.trunk.mlp", "mlp", mlp},
                  {"model.trunk.heads", "heads", heads},
                  {"model.trunk.patch", "patch", patch}},
                 ""};
  std::vector<std::string> all;
  for (const TrunkForm::Number& n : form.numbers)
    all.push_back(fmt::format("{} {}", n.what, n.value));
  form.text = fmt::format("a ViT of {}", fmt::join(all, ", "));
  return form;
}

}  // namespace

TrunkWeights vit_weights(const VitConfig& config) {
  TrunkWeights weights{.vit = VitFacts{.root = "encoder/",
                                       .heads = config.heads,
                                       .patches = config.patches(),
                                       .class_token = config.class_token,
                                       .learned_positions = config.learned_positions,
                                       .exact_gelu = config.gelu == nn::Gelu::erf},
                       .form = vit_form};
  if (config.learned_positions) weights.patch_tables = {"encoder/pos_embedding"};
  return weights;
}

}  // namespace models
