// SPDX-License-Identifier: Apache-2.0
// Keys of the kinds of heads (ssl.md 2).
#pragma once

#include "models/heads/head.hpp"
#include "models/heads/head_layers.hpp"

namespace models {

// Products with batch norm, ReLU and dropout between them. Layers are named clf.0, clf.1, ...
struct MlpHeadOptions : config::Table::Variant {
  std::vector<int64_t> layers;  // width of each product
  HeadNormOptions batch_norm;
  bool bias = true, relu = false, bare_last = true;
  double dropout = 0, multiplier = 1;
  void bind(config::Table& t) override;
  HeadChain chain(const std::string& path, int64_t in) const;
};

// A batch norm of the channels of a feature map, then an mlp.
struct EvalMlpHeadOptions : config::Table::Variant {
  int64_t channels = 0;
  MlpHeadOptions mlp;
  void bind(config::Table& t) override;
};

struct ConcatHeadOptions : config::Table::Variant {
  int64_t towers = 1;
  void bind(config::Table& t) override;
};

// For an image and its patches, in consecutive rows, the image first: products of each patch
// (patch.0, ...), products of all patches joined (joined.0, ...), products of the image (image.0,
// ...). Outputs: the embedding of the patches, and the embedding of the image.
struct PatchHeadOptions : config::Table::Variant {
  int64_t patches = 9;
  MlpHeadOptions patch, joined, image;
  void bind(config::Table& t) override;
};
std::unique_ptr<Head> make_patch_head(const PatchHeadOptions& options, const std::string& path,
                                      int64_t in, ParameterList& list);

// Products (projection_head.0, ...), then rows of unit length, then their products with prototypes
// [K, width] (prototypes0, ...). Outputs: the embedding, if wanted, and the scores of each set of
// prototypes.
struct SwavHeadOptions : config::Table::Variant {
  std::vector<int64_t> layers, prototypes = {3000};
  HeadNormOptions batch_norm{.on = true};
  kernels::Activation activation = kernels::Activation::relu;
  bool bias = true, bare_last = true, normalize = true, return_embedding = true;
  void bind(config::Table& t) override;
};
std::unique_ptr<Head> make_swav_head(const SwavHeadOptions& options, const std::string& path,
                                     int64_t in, ParameterList& list);

// Products with GELU (mlp.0, ...), rows of unit length, and a product with rows whose direction and
// length are separate parameters (prototypes0.weight_v, weight_g). Output: scores.
struct DinoHeadOptions : config::Table::Variant {
  int64_t prototypes = 65536, layers = 3, hidden = 2048, bottleneck = 256;
  HeadNormOptions batch_norm;
  bool normalize_last_layer = true;
  void bind(config::Table& t) override;
};
std::unique_ptr<Head> make_dino_head(const DinoHeadOptions& options, const std::string& path,
                                     int64_t in, ParameterList& list);

}  // namespace models
