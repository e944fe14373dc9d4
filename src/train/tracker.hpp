// SPDX-License-Identifier: Apache-2.0
// Tracks the best value of an evaluator's metric so far, for checkpoints/best.h5 and for early
// stopping.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/table.hpp"
#include "eval/evaluator.hpp"
#include "train/measure_rule.hpp"
#include "train/member_list.hpp"

namespace train {

// [early_stop] of the deck.
struct EarlyStopOptions {
  std::string metric;
  int64_t patience_evals = 0;
  double min_change = 0;
  double not_before_fraction = 0;
  void bind(config::Table& t);
};

// A choice "EVAL/METRIC:min" or ":max".
struct MetricChoice {
  std::string evaluator, metric;
  bool smallest = true;
};
// Error(Exit::config) explains what is wrong with the text, or that the evaluator or metric does
// not exist.
MetricChoice parse_metric_choice(const std::string& text,
                                 const std::map<std::string, eval::EvalOptions>& evals);

class Tracker {
 public:
  Tracker() = default;  // tracks nothing
  // `name` prefixes the numbers in checkpoints. A value is better if it improves by at least
  // `min_change`.
  Tracker(std::string name, MetricChoice choice, double min_change = 0);

  // Compares the values of one evaluator; returns true if they hold the best one so far.
  bool update(const std::string& evaluator,
              const std::vector<std::pair<std::string, double>>& values, int64_t step);
  void forget() {
    step_ = -1;
    waiting_ = 0;
  }
  bool has_value() const { return step_ >= 0; }
  double value() const { return value_; }
  int64_t step() const { return step_; }
  int64_t waiting() const { return waiting_; }  // evaluations since the best one
  std::string text() const;                     // "val/perplexity"

  // Lists the members that checkpoints hold; none if nothing is tracked.
  void members(MemberList& list);

 private:
  std::string name_;
  MetricChoice choice_;
  double min_change_ = 0;
  double value_ = 0;
  int64_t step_ = -1, waiting_ = 0;
};

// A choice "EVAL/METRIC:below:VALUE" or ":above:VALUE".
struct ThresholdChoice {
  std::string evaluator, metric;
  Bound bound;
};
// Error(Exit::config) as parse_metric_choice.
ThresholdChoice parse_threshold(const std::string& text,
                                const std::map<std::string, eval::EvalOptions>& evals);

// Notices when a metric comes to the chosen side of a value.
class Threshold {
 public:
  Threshold() = default;  // notices nothing
  explicit Threshold(ThresholdChoice choice) : choice_(std::move(choice)) {}

  // Compares the values of one evaluator. Returns true if the metric is on the chosen side now, and
  // was not at its previous evaluation.
  bool update(const std::string& evaluator,
              const std::vector<std::pair<std::string, double>>& values);
  void forget() { beyond_ = 0; }
  // Lists the members that checkpoints hold; none if no threshold is chosen.
  void members(MemberList& list);

 private:
  ThresholdChoice choice_;
  double beyond_ = 0;  // 1: the metric was on the chosen side at the last evaluation
};

}  // namespace train
