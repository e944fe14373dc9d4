// SPDX-License-Identifier: Apache-2.0
// Keys of [model] kind = "classifier".
#pragma once

#include "models/classes/class_objective.hpp"
#include "models/classes/mixing.hpp"
#include "models/trunks/trunk.hpp"

namespace models {

struct ClassifierOptions : config::Table::Variant, ClassLossOptions {
  int64_t image_size = 224;
  int64_t num_classes = 1000;
  double init_head_bias = 0;
  MixupOptions mixup;
  TrunkOptions trunk;
  void bind(config::Table& t) override;
};

}  // namespace models
