// SPDX-License-Identifier: Apache-2.0
// Sections of the deck that only one mode reads (src/modes).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/table.hpp"

namespace train {

// [bench]
struct BenchOptions {
  int64_t warmup_steps = 2, steps = 6;
  double max_s = 120;
  void bind(config::Table& t);
};

// [show]
struct ShowOptions {
  std::string data;
  int64_t step = 1, examples = 16;
  void bind(config::Table& t);
};

// [index]
struct IndexOptions {
  std::vector<std::string> data;
  void bind(config::Table& t);
};

}  // namespace train
