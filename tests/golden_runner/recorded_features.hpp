// SPDX-License-Identifier: Apache-2.0
// Evaluators on recorded features or scores, without a model.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "eval/evaluator.hpp"

namespace golden {

// Recorded rows, as a data set of "images" that are their own features or scores.
struct Recorded {
  int64_t features = 0;
  std::vector<float> x;          // [rows, features]
  std::vector<int32_t> y;        // [rows]
  std::vector<float> targets{};  // optional field `targets`: [rows, features]
};

// Makes an evaluator from keys of its table.
std::unique_ptr<eval::Evaluator> make_evaluator(const std::string& keys);

// Runs an evaluator that embeds images of "train" and "test", on all ranks. Returns its numbers.
std::map<std::string, double> evaluate(comm::Comm& world, eval::Evaluator& evaluator,
                                       const Recorded& train, const Recorded& test);

// Runs an evaluator that reads scores of classes, which are the images of "test".
std::map<std::string, double> evaluate_scores(comm::Comm& world, eval::Evaluator& evaluator,
                                              const Recorded& test);

}  // namespace golden
