// SPDX-License-Identifier: Apache-2.0
// The [optimizer] section, and the policy of each parameter that follows from its rules.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/table.hpp"
#include "kernels/loss_scale.hpp"
#include "optim/method.hpp"
#include "optim/schedule.hpp"

namespace optim {

// [[optimizer.rule]]: the first rule that fully matches a parameter's path decides its whole
// policy.
struct Rule {
  std::string match;
  double decay_scale = -1;  // -1: the default, 1 for kernels and 0 for the rest
  double lr_scale = 1;
  std::string schedule = "default";
  bool frozen = false;
  void bind(config::Table& t);
};

struct OptimizerOptions {
  std::string kind = "adafactor";
  std::shared_ptr<config::Table::Variant> method;  // a MethodOptions; none: the defaults of `kind`
  double learning_rate = 0;
  double weight_decay = 0;
  double clip_norm = 0;
  std::vector<Rule> rules;
  void bind(config::Table& t);
  const MethodOptions& method_options() const;

 private:
  mutable std::shared_ptr<MethodOptions> defaults_;
};

// [precision.loss_scale], for fp16.
struct LossScaleOptions {
  double init = 65536, growth = 2, backoff = 0.5, min = 1;
  int64_t growth_interval = 2000;
  void bind(config::Table& t);
  bool operator==(const LossScaleOptions&) const = default;
  kernels::LossScaleRule rule() const {
    return {float(growth), float(backoff), float(min), growth_interval};
  }
};

// The result of the rules for one parameter.
struct ParameterPolicy {
  bool frozen = false;
  double lr_scale = 1;
  double decay_scale = 0;
  int schedule = 0;  // index into Policies::schedules
};

struct Policies {
  std::vector<ParameterPolicy> parameters;  // in the order of `paths`
  std::vector<std::string> schedules;       // names; the first is "default"
  std::vector<Problem> problems;            // not empty: do not use the rest
};

using ScheduleTables = std::map<std::string, ScheduleOptions>;

// Applies the rules to parameters. Problems: parameters that no rule covers, rules that match no
// parameter, unknown schedules, [schedule.NAME] tables that no parameter uses.
Policies resolve_policies(const OptimizerOptions& options, const ScheduleTables& tables,
                          const std::vector<std::string>& paths);
// Applies the rules to the parameters of a model. Those of kind state need no rule and are frozen.
Policies resolve_policies(const OptimizerOptions& options, const ScheduleTables& tables,
                          const std::vector<shard::Parameter>& parameters);

// Returns the problems of all tables (ScheduleOptions::problems).
std::vector<Problem> schedule_problems(const ScheduleTables& tables, const Clock& clock);

// Makes the named schedules. A schedule without a table is constant 1.
std::vector<Schedule> make_schedules(const std::vector<std::string>& names,
                                     const ScheduleTables& tables, const Clock& clock);

}  // namespace optim
