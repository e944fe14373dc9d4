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

// [plan]
struct PlanOptions {
  bool parameters = false;
  void bind(config::Table& t);
};

// [show]
struct ShowOptions {
  std::string data;
  int64_t step = 1, examples = 16;
  void bind(config::Table& t);
};

// [evaluate]
struct EvaluateOptions {
  std::vector<std::string> from;        // [] = the run directory
  std::vector<std::string> evaluators;  // names of evaluations (eval::evaluations); [] = all
  bool every_checkpoint = false;        // checkpoints: of run directories, all, not the newest one
  int64_t batch = 0;                    // 0 = at most the examples of a training pass
  std::string out;                      // "" = no file
  void bind(config::Table& t);
};

// [index]
struct IndexOptions {
  std::vector<std::string> data;
  void bind(config::Table& t);
};

}  // namespace train
