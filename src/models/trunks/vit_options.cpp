// SPDX-License-Identifier: Apache-2.0
#include "models/trunks/vit_options.hpp"

#include <fmt/format.h>

#include <map>

namespace models {
namespace {

struct Variant {
  int64_t width, depth, mlp, heads;
};
const std::map<std::string, Variant> kVariants = {  // cappa.md 1.1
    {"mu", {32, 1, 128, 2}},          {"Ti", {192, 12, 768, 3}},   {"S", {384, 12, 1536, 6}},
    {"M", {512, 12, 2048, 8}},        {"B", {768, 12, 3072, 12}},  {"L", {1024, 24, 4096, 16}},
    {"So400m", {1152, 27, 4304, 16}}, {"H", {1280, 32, 5120, 16}}, {"g", {1408, 40, 6144, 16}},
    {"g-opt", {1536, 40, 6144, 16}},  {"G", {1664, 48, 8192, 16}}, {"G-opt", {1536, 48, 8192, 16}},
    {"e", {1792, 56, 15360, 16}}};

}  // namespace

void EncoderOptions::bind(config::Table& t) {
  t.key("variant", variant,
        "a size by name, as \"B/16\" (mu Ti S M B L So400m H g g-opt G G-opt e); explicit keys win")
      .on_resume(config::OnResume::never);
  if (!variant.empty()) {
    size_t slash = variant.find('/');
    auto found = kVariants.find(variant.substr(0, slash));
    int64_t size = slash == std::string::npos ? 0 : std::atoll(variant.c_str() + slash + 1);
    if (found == kVariants.end() || size <= 0) {
      t.error("variant", fmt::format("\"{}\" is not a variant; give NAME/PATCH such as \"B/16\", "
                                     "with a NAME of mu Ti S M B L So400m H g g-opt G G-opt e",
                                     variant));
    } else {
      const Variant& v = found->second;
      patch = size;
      width = v.width;
      depth = v.depth;
      mlp = v.mlp;
      heads = v.heads;
    }
  }
  auto never = config::OnResume::never;
  t.key("patch", patch, "side of a patch, in pixels").min(1).max(1024).on_resume(never);
  t.key("depth", depth, "transformer blocks").min(1).max(1000).on_resume(never);
  t.key("width", width, "embedding width").min(1).max(65536).on_resume(never);
  t.key("mlp", mlp, "hidden width of the MLPs").min(1).max(1 << 20).on_resume(never);
  t.key("heads", heads, "attention heads; must divide width").min(1).max(1024).on_resume(never);
  t.key("dropout", dropout, "dropout rate").min(0).max(0.99);
  t.choice("gelu", gelu, kGeluNames,
           "GELU of the MLPs. tanh: the approximation that big_vision and JAX use; erf: the exact "
           "function, which PyTorch programs use (timm, DINO, MAE, transformers); quick: "
           "x sigmoid(1.702 x), which OpenAI's CLIP uses")
      .on_resume(never);
  t.key(
       "swiglu", swiglu,
       "MLPs are gated: silu of a third product takes GELU's place (arXiv 2002.05202); mlp is then "
       "the width of what it multiplies. DINOv2's giant ViT has it, with mlp = 4096")
      .on_resume(never);
  t.key("norm_epsilon", norm_epsilon,
        "added to the variance in layer norms; transformers' ViT has 1e-12")
      .min(0)
      .max(0.1)
      .on_resume(never);
  t.key("layer_scale", layer_scale,
        "first value of trained factors, one for each channel, of what attention and MLP add; 0: "
        "there are none. DINOv2 has 1e-5 and 1")
      .min(0)
      .max(10)
      .on_resume(never);
  if (heads > 0 && width % heads)
    t.error(t.has("width") && !t.has("heads") ? "width" : "heads",
            fmt::format("width = {} is not divisible by heads = {}", width, heads));
}

void VitTrunkOptions::bind(config::Table& t) {
  auto never = config::OnResume::never;
  size.bind(t);
  t.choice(
       "posemb", positions, kPositionNames,
       "places of the patches. learn, sincos2d: a trained or fixed table that is added to them; "
       "sincos2d_mae: the fixed one of MAE, with other frequencies; "
       "rope: queries and keys are turned by angles of two axes, as in DINOv3")
      .on_resume(never);
  t.choice("pool", pool, kPoolNames,
           "how tokens become one vector: gap: their mean; tok: a class token in front of them; "
           "map: attention of a learned probe, then an MLP")
      .on_resume(never);
  t.key("registers", registers,
        "learned tokens behind the class token, which no vector is made of (arXiv 2309.16588); "
        "they need pool = \"tok\"")
      .min(0)
      .max(1024)
      .on_resume(never);
  t.key("pre_norm", pre_norm,
        "a layer norm of the embedded tokens in front of the blocks, as in CLIP")
      .on_resume(never);
  if (registers > 0 && pool != Pool::tok)
    t.error("registers",
            fmt::format("{} registers need pool = \"tok\"; pool = \"{}\" would take them for "
                        "patches",
                        registers, base::name_of(kPoolNames, pool)));
  if (positions == Positions::rotary && size.heads > 0 && size.width / size.heads % 4)
    t.error("posemb",
            fmt::format("rope needs heads whose width is divisible by 4; width / heads is {}",
                        size.width / size.heads));
  if ((positions == Positions::fixed || positions == Positions::mae) && size.width % 4)
    t.error("posemb", fmt::format("{} needs a width divisible by 4; width is {}",
                                  base::name_of(kPositionNames, positions), size.width));
}

std::string VitTrunkOptions::image_problem(int64_t height, int64_t width) const {
  for (int64_t side : {height, width})
    if (size.patch > 0 && side % size.patch)
      return fmt::format("{} is not divisible by model.trunk.patch = {}", side, size.patch);
  return "";
}

// A class token has no place in the image, and nothing would train a map head.
std::string VitTrunkOptions::token_problem() const {
  if (pool == Pool::gap) return "";
  return fmt::format(
      "pool = \"{}\" makes one vector, and this model reads the tokens of patches; "
      "leave pool out",
      base::name_of(kPoolNames, pool));
}

std::unique_ptr<Trunk> VitTrunkOptions::make(int64_t height, int64_t width, Recompute recompute,
                                             ParameterList& list) const {
  VitConfig config = vit_config(size, height, width, positions == Positions::learned);
  config.rotary = positions == Positions::rotary;
  config.mae_table = positions == Positions::mae;
  config.class_token = pool == Pool::tok;
  config.registers = registers;
  config.pre_norm = pre_norm;
  return std::make_unique<Vit>(config, recompute, list);
}

VitConfig vit_config(const EncoderOptions& options, int64_t image_height, int64_t image_width,
                     bool learned_positions) {
  return {.image_height = image_height,
          .image_width = image_width,
          .patch_height = options.patch,
          .patch_width = options.patch_columns(),
          .depth = options.depth,
          .width = options.width,
          .mlp = options.mlp,
          .heads = options.heads,
          .dropout = float(options.dropout),
          .gelu = options.gelu,
          .swiglu = options.swiglu,
          .norm_epsilon = float(options.norm_epsilon),
          .layer_scale = options.layer_scale,
          .learned_positions = learned_positions};
}

}  // namespace models
