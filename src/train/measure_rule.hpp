// SPDX-License-Identifier: Apache-2.0
// Rules about the measures of training, with which an evaluator chooses its steps (eval.NAME.when).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "eval/evaluator.hpp"
#include "models/model.hpp"
#include "train/member_list.hpp"

namespace train {

// A text "X:below:VALUE" or "X:above:VALUE".
struct Bound {
  std::string of;  // X
  bool below = true;
  double value = 0;
  // Returns false if the text has another form.
  bool parse(const std::string& text);
  bool holds(double measured) const { return below ? measured < value : measured > value; }
};

// Error(Exit::config) explains what is wrong with the text, or that the model has no such measure.
Bound parse_measure_rule(const std::string& text, const std::vector<models::Measure>& measures);

// The measures that rules read, as the newest step gave them. Checkpoints keep them, so that a
// continued run decides like an uninterrupted one.
class WatchedMeasures {
 public:
  WatchedMeasures() = default;  // watches nothing
  explicit WatchedMeasures(const std::map<std::string, eval::EvalOptions>& evals);

  // values: of a step, in the order of `measures`.
  void update(const std::vector<models::Measure>& measures, const std::vector<double>& values);
  // Returns "" if the rule holds, or a text such as "loss=3.2 is not below 2". Without a value
  // the rule does not hold.
  std::string problem(const std::string& rule) const;
  // Lists the members that checkpoints hold; none if nothing is watched.
  void members(MemberList& list);

 private:
  std::map<std::string, double> values_;  // by measure; NaN: not known
};

}  // namespace train
