// SPDX-License-Identifier: Apache-2.0
// The [optimizer] section, and the policy of each parameter that follows from its rules.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/table.hpp"
#include "kernels/loss_scale.hpp"
#include "optim/method.hpp"
#include "optim/schedule.hpp"
#include "optim/trust.hpp"

namespace optim {

// The kind of a parameter, for rules.
enum class ParameterRole {
  weight,  // all others
  bias,    // named bias, but not part of a norm
  norm     // of a norm: scale or weight with one dimension, and the bias beside it
};
inline constexpr std::pair<const char*, ParameterRole> kRoleNames[] = {
    {"weight", ParameterRole::weight},
    {"bias", ParameterRole::bias},
    {"norm", ParameterRole::norm}};
// Returns the roles of a model's parameters, from their names and shapes.
std::vector<ParameterRole> roles_of(const std::vector<shard::Parameter>& parameters);

// [[optimizer.rule]]: the first rule that fits a parameter decides its whole policy. It fits if the
// path matches fully and `of` is empty or names the parameter's role.
struct Rule {
  std::string match;
  std::vector<std::string> of{};
  double decay_scale = -1;  // -1: the default, 1 for kernels and 0 for the rest
  double lr_scale = 1;
  std::string schedule = "default";
  std::string decay_schedule{};  // empty: optimizer.decay_schedule
  bool frozen = false;
  config::Duration frozen_until{};
  bool trust = true;
  std::string kind = "same";  // of the optimizer; "same": the kind of [optimizer]
  std::shared_ptr<config::Table::Variant> method{};  // a MethodOptions; none: "same"
  void bind(config::Table& t);
  std::string pattern() const { return match.empty() ? ".*" : match; }
};

// The quantity that weight decay is added to (ssl.md 4).
enum class DecayForm {
  schedule,  // to the update, times the schedule alone: big_vision
  rate,      // to the update, times rate and schedule: PyTorch's AdamW
  gradient   // to the gradient, before the optimizer: PyTorch's SGD and Adam, LARC, LARS
};
enum class ClipType { two, infinity };

struct OptimizerOptions {
  std::string kind = "adafactor";
  std::shared_ptr<config::Table::Variant> method;  // a MethodOptions; none: the defaults of `kind`
  double learning_rate = 0;
  double weight_decay = 0;
  double layer_decay = 1;
  DecayForm decay_form = DecayForm::schedule;
  std::string decay_schedule;  // empty: none
  double clip_norm = 0, drop_norm = 0;
  ClipType clip_type = ClipType::two;
  std::optional<TrustOptions> trust;
  std::vector<Rule> rules;
  void bind(config::Table& t);
  // Returns the options of the optimizer of [optimizer] (-1), or of a rule with a kind of its own.
  const MethodOptions& method_options(int rule = -1) const;

 private:
  void check(config::Table& t) const;
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
  int schedule = 0;          // index into Policies::schedules
  int decay_schedule = -1;   // the same; -1: none
  int64_t frozen_steps = 0;  // number of first steps whose gradients are dropped
  bool trust = true;         // with [optimizer.trust]: scales the gradient
  int rule = -1;             // index of the rule whose kind updates it; -1: [optimizer]
};

struct Policies {
  std::vector<ParameterPolicy> parameters;  // in the order of the parameters
  std::vector<std::string> schedules;       // names; the first is "default"
  std::vector<Problem> problems;            // not empty: do not use the rest
};

using ScheduleTables = std::map<std::string, ScheduleOptions>;

// Applies the rules to the parameters of a model. Problems: parameters that no rule covers, rules
// that match no parameter, unknown schedules, [schedule.NAME] tables that no parameter uses.
// Parameters of kind state need no rule and are frozen. Without a clock, frozen_steps are not
// known.
Policies resolve_policies(const OptimizerOptions& options, const ScheduleTables& tables,
                          const std::vector<shard::Parameter>& parameters, const Clock& clock = {});
// Resolves the policies of parameters by their paths alone.
Policies resolve_policies(const OptimizerOptions& options, const ScheduleTables& tables,
                          const std::vector<std::string>& paths);

// Returns the problems of all tables (ScheduleOptions::problems).
std::vector<Problem> schedule_problems(const ScheduleTables& tables, const Clock& clock);

// Makes the named schedules. A schedule without a table is constant 1.
std::vector<Schedule> make_schedules(const std::vector<std::string>& names,
                                     const ScheduleTables& tables, const Clock& clock);

}  // namespace optim
