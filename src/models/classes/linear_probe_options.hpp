// SPDX-License-Identifier: Apache-2.0
// Keys of [model] kind = "linear_probe".
#pragma once

#include <string>
#include <vector>

#include "kernels/rank_hits.hpp"
#include "models/heads/head.hpp"
#include "models/trunks/trunk.hpp"

namespace models {

// A classifier on the values of one tap of the trunk: [[model.probe]].
struct ProbeOptions {
  std::string name, tap;
  int64_t pool = 0, pool_stride = 1, pool_padding = 0;  // pool 0: the values as they are
  HeadOptions head;
  void bind(config::Table& t);
  // Returns the name in measures: `name`, or the tap's name if `name` is empty.
  const std::string& label() const { return name.empty() ? tap : name; }
};

struct LinearProbeOptions : config::Table::Variant {
  int64_t image_size = 224;
  int64_t num_classes = 1000;
  std::vector<int64_t> top = {1, 5};
  TrunkOptions trunk;
  std::vector<ProbeOptions> probes;
  void bind(config::Table& t) override;
};

}  // namespace models
