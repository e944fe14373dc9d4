// SPDX-License-Identifier: Apache-2.0
// Keys of [model] kind = "classifier" and kind = "linear_probe".
#pragma once

#include <vector>

#include "models/classes/class_objective.hpp"
#include "models/classes/mixing.hpp"
#include "models/classes/probe.hpp"
#include "models/trunks/trunk.hpp"

namespace models {

struct ClassOptions : config::Table::Variant, ClassLossOptions {
  int64_t image_size = 224, num_classes = 1000;
  TrunkOptions trunk;
  std::vector<ProbeOptions> probes;  // none: a linear head reads the features of a trained trunk
  std::vector<int64_t> top = {1};    // counted for each probe in training
  double init_head_bias = 0;         // of the linear head
  MixupOptions mixup;

  bool trains_trunk() const { return probes.empty(); }

 protected:
  void bind_sizes(config::Table& t);
  void bind_trunk(config::Table& t, const std::string& doc);
};

struct ClassifierOptions : ClassOptions {
  void bind(config::Table& t) override;
};

struct LinearProbeOptions : ClassOptions {
  LinearProbeOptions() { top = {1, 5}; }
  void bind(config::Table& t) override;
};

}  // namespace models
