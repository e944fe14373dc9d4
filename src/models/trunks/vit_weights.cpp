// SPDX-License-Identifier: Apache-2.0
// A ViT's declarations about its tensors (TrunkWeights).
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/names.hpp"
#include "models/trunks/vit_options.hpp"

namespace models {
namespace {

std::optional<TrunkForm> vit_form(const TensorShapes& shapes) {
  int64_t depth = 0, width = 0, mlp = 0, heads = 0, patch = 0, registers = 0;
  bool layer_scale = false, pre_norm = false, swiglu = false;
  for (const auto& [path, shape] : shapes) {
    int64_t block = 0;
    if (path == "encoder/embedding/kernel" && shape.size() == 4) {
      patch = shape[0];
      width = shape[3];
    }
    if (path == "encoder/pre_norm/scale") pre_norm = true;
    if (path == "encoder/registers" && shape.size() == 3) registers = shape[1];
    if (std::sscanf(path.c_str(), "encoder/Transformer/encoderblock_%ld/", &block) != 1) continue;
    depth = std::max(depth, block + 1);
    if (path.ends_with("/MlpBlock_0/Dense_0/kernel") && shape.size() == 2) mlp = shape[1];
    if (path.ends_with("/MlpBlock_0/gate/kernel")) swiglu = true;
    if (path.ends_with("/LayerScale_0/scale")) layer_scale = true;
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
  if (registers > 0) all.push_back(fmt::format("registers {}", registers));
  if (swiglu) all.push_back("with SwiGLU");
  if (layer_scale) all.push_back("with layer scale");
  if (pre_norm) all.push_back("with a norm in front");
  form.text = fmt::format("a ViT of {}", fmt::join(all, ", "));
  form.numbers.push_back({"model.trunk.registers", "registers", registers});
  form.numbers.push_back({"model.trunk.swiglu", "SwiGLU", swiglu ? TrunkForm::kAnyValue : 0});
  form.numbers.push_back(
      {"model.trunk.layer_scale", "layer scale", layer_scale ? TrunkForm::kAnyValue : 0});
  form.numbers.push_back(
      {"model.trunk.pre_norm", "norm in front", pre_norm ? TrunkForm::kAnyValue : 0});
  return form;
}

}  // namespace

TrunkWeights vit_weights(const VitConfig& config) {
  TrunkWeights weights{
      .vit = VitFacts{.root = "encoder/",
                      .heads = config.heads,
                      .patches = config.patches(),
                      .class_token = config.class_token,
                      .learned_positions = config.learned_positions,
                      .rotary = config.rotary,
                      .gelu = config.swiglu ? "" : base::name_of(kGeluNames, config.gelu)},
      .form = vit_form};
  if (config.learned_positions) weights.patch_tables = {"encoder/pos_embedding"};
  return weights;
}

}  // namespace models
