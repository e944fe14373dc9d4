// SPDX-License-Identifier: Apache-2.0
#include "models/heads/head_kinds.hpp"

namespace models {
namespace {

using enum config::OnResume;

void bind_layers(config::Table& t, std::vector<int64_t>& layers) {
  t.key("layers", layers, "width of the result of each product")
      .required()
      .min(1)
      .max(1 << 20)
      .on_resume(never)
      .check([&layers] { return std::string(layers.empty() ? "needs at least one width" : ""); });
}

}  // namespace

void MlpHeadOptions::bind(config::Table& t) {
  bind_layers(t, layers);
  t.table("batch_norm", batch_norm, "batch norm between the products");
  t.key("bias", bias, "products have a bias").on_resume(never);
  t.key("relu", relu, "ReLU between the products").on_resume(never);
  t.key("bare_last", bare_last, "nothing follows the last product").on_resume(never);
  t.key("dropout", dropout, "share of values that are dropped between the products")
      .min(0)
      .max(0.99);
  t.key("multiplier", multiplier, "factor of all initial weights and biases of the products");
}

HeadChain MlpHeadOptions::chain(const std::string& path, int64_t in) const {
  HeadChain c{.path = path,
              .widths = {in},
              .norm = batch_norm,
              .activation = {},
              .bias = bias,
              .bare_last = bare_last,
              .dropout = float(dropout),
              .multiplier = multiplier};
  c.widths.insert(c.widths.end(), layers.begin(), layers.end());
  if (relu) c.activation = kernels::Activation::relu;
  return c;
}

void EvalMlpHeadOptions::bind(config::Table& t) {
  t.key("channels", channels, "channels of the feature map").required().min(1).on_resume(never);
  mlp.bind(t);
}

void ConcatHeadOptions::bind(config::Table& t) {
  t.key("towers", towers, "consecutive rows whose features are joined").min(1).on_resume(never);
}

void PatchHeadOptions::bind(config::Table& t) {
  t.key("patches", patches, "rows of patches that follow the row of the image")
      .min(1)
      .on_resume(never);
  t.table("patch", patch, "products of each patch");
  t.table("joined", joined, "products of the concatenated results of all patches");
  t.table("image", image, "products of the image");
}

void SwavHeadOptions::bind(config::Table& t) {
  bind_layers(t, layers);
  t.key("prototypes", prototypes, "number of prototypes of each set")
      .min(1)
      .max(1 << 24)
      .on_resume(never)
      .check([this] { return std::string(prototypes.empty() ? "needs one set" : ""); });
  t.table("batch_norm", batch_norm, "batch norm between the products");
  t.choice("activation", activation,
           {{"relu", kernels::Activation::relu}, {"gelu", kernels::Activation::gelu_erf}},
           "activation between the products")
      .on_resume(never);
  t.key("bias", bias, "products have a bias").on_resume(never);
  t.key("bare_last", bare_last, "neither batch norm nor activation follows the last product")
      .on_resume(never);
  t.key("normalize", normalize, "rows are divided by their length before the prototypes")
      .on_resume(never);
}

void DinoHeadOptions::bind(config::Table& t) {
  t.key("prototypes", prototypes, "width of the scores").min(1).max(1 << 24).on_resume(never);
  t.key("layers", layers, "products before the prototypes; the last one has width bottleneck")
      .min(1)
      .max(64)
      .on_resume(never);
  t.key("hidden", hidden, "width of the products between").min(1).on_resume(never);
  t.key("bottleneck", bottleneck, "width of a prototype").min(1).on_resume(never);
  t.table("batch_norm", batch_norm, "batch norm between the products");
  t.key("normalize_last_layer", normalize_last_layer, "the lengths of the prototypes stay 1")
      .on_resume(never);
}

}  // namespace models
