// SPDX-License-Identifier: Apache-2.0
// Keys of [model] kind = "classifier".
#pragma once

#include <memory>
#include <utility>

#include "kernels/class_xent.hpp"
#include "models/pooling.hpp"
#include "models/vit_options.hpp"

namespace models {

inline constexpr std::pair<const char*, Pool> kPoolNames[] = {
    {"gap", Pool::gap}, {"map", Pool::map}, {"tok", Pool::tok}};
inline constexpr std::pair<const char*, kernels::ClassLoss> kClassLossNames[] = {
    {"softmax", kernels::ClassLoss::softmax}, {"sigmoid", kernels::ClassLoss::sigmoid}};

// A ViT that makes one vector of an image.
struct VitTrunkOptions : config::Table::Variant {
  EncoderOptions size;
  bool learned_positions = true;  // posemb
  Pool pool = Pool::gap;
  void bind(config::Table& t) override;
};

// The part of a model that makes one vector of an image, by kind.
struct TrunkOptions {
  std::string kind;
  std::shared_ptr<config::Table::Variant> options;
  void bind(config::Table& t);
};

// Each image is blended with another one of the batch, and so are their labels.
struct MixupOptions {
  double p = 0;       // the shares are of Beta(p, p); 0: no image is blended
  int64_t group = 2;  // consecutive examples of the global batch that are blended with each other
  void bind(config::Table& t);
};

struct ClassifierOptions : config::Table::Variant {
  int64_t image_size = 224;
  int64_t num_classes = 1000;
  kernels::ClassLoss loss = kernels::ClassLoss::softmax;
  double label_smoothing = 0;
  double init_head_bias = 0;
  MixupOptions mixup;
  TrunkOptions trunk;
  void bind(config::Table& t) override;

  const VitTrunkOptions& vit() const {
    return dynamic_cast<const VitTrunkOptions&>(*trunk.options);
  }
  VitConfig vit_config() const;
  PoolingConfig pooling() const;
};

}  // namespace models
