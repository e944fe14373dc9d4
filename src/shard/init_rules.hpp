// SPDX-License-Identifier: Apache-2.0
// Initial distributions by rule: [[model.init]].
#pragma once

#include <string>
#include <vector>

#include "config/table.hpp"
#include "shard/parameter.hpp"

namespace shard {

struct InitRule {
  std::string match;  // regular expression
  Init::Kind kind = Init::Kind::normal;
  double scale = 1;
  void bind(config::Table& t);
  // Returns why the rule does not suit the parameter, or "".
  std::string problem(const Parameter& parameter) const;
};

// Gives parameters the initial distribution of the first rule that matches their path. Others, and
// all states, keep their own. Error(Exit::config) for a rule that has a problem with a parameter.
void apply_init_rules(const std::vector<InitRule>& rules, std::vector<Parameter>& parameters);
// Returns the number of the first rule that matches the parameter; -1 if none does.
int rule_of(const std::vector<InitRule>& rules, const Parameter& parameter);

}  // namespace shard
