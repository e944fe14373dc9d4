// SPDX-License-Identifier: Apache-2.0
// Keys of [model] kind = "classifier".
#pragma once

#include <memory>
#include <utility>

#include "kernels/class_xent.hpp"
#include "models/trunk.hpp"

namespace models {

inline constexpr std::pair<const char*, kernels::ClassLoss> kClassLossNames[] = {
    {"softmax", kernels::ClassLoss::softmax}, {"sigmoid", kernels::ClassLoss::sigmoid}};

// Mixup blends each image with another one of the batch, and their labels as well.
struct MixupOptions {
  double p = 0;       // shares are drawn from Beta(p, p); 0: no image is blended
  int64_t group = 2;  // consecutive examples of the global batch that form a group of partners
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
};

}  // namespace models
