// SPDX-License-Identifier: Apache-2.0
// Sections of the deck that only one mode reads (src/modes).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/table.hpp"
#include "eval/captions/generated_caption.hpp"
#include "eval/evaluator.hpp"

namespace train {

// [bench]
struct BenchOptions {
  int64_t warmup_steps = 2, steps = 6, op_steps = 0;
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
  bool every_checkpoint = false;        // checkpoints: all of a run directory, not the newest one
  int64_t batch = 0;                    // 0 = at most the examples of a training pass
  std::string out;                      // "" = no file
  std::string files;                    // folder; "" = none
  void bind(config::Table& t);
};

// Keys that are shared by the modes that write a row for each sample.
struct RowOptions {
  std::string from;      // "" = the run directory
  bool average = false;  // weights: the average, not the trained ones
  int64_t batch = 0;     // 0 = at most the examples of a training pass
  std::string out;       // "" = the mode's own place in the run directory
  void bind(config::Table& t, const std::string& place);
};

// [extract]
struct ExtractOptions {
  std::string data;               // "" = the deck is not for this mode
  std::vector<std::string> taps;  // none: the vector that a head reads
  bool mean = false;              // pool: taps with tokens give the mean over them
  bool half = false;              // dtype: float16
  RowOptions rows;
  void bind(config::Table& t);
};

// [predict]
struct PredictOptions {
  std::string evaluator;  // "" = the deck is not for this mode
  std::string data;       // "" = the evaluator's
  int64_t top_k = 5;
  RowOptions rows;
  void bind(config::Table& t);
};

// [caption]
struct CaptionOptions {
  std::string from;                            // "" = the run directory
  eval::Weights weights = eval::Weights::raw;  // raw or ema
  std::string data;                            // "" = a set that the deck captions or evaluates
  int64_t batch = 0;                           // 0 = at most the examples of a training pass
  std::string out;                             // "" = no file
  eval::CaptioningOptions decoding;
  void bind(config::Table& t);
};

// [selftest]
struct SelftestOptions {
  std::vector<std::string> checks = {"exchange", "speed", "mesh", "files", "clocks"};
  double slow = 0.6;  // slow_below
  double mesh_s = 20;
  bool has(const std::string& check) const;
  void bind(config::Table& t);
};

// [index]
struct IndexOptions {
  std::vector<std::string> data;
  void bind(config::Table& t);
};

}  // namespace train
