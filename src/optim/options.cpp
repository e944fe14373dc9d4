// SPDX-License-Identifier: Apache-2.0
#include "optim/options.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "base/elementary.hpp"
#include "base/pattern.hpp"
#include "base/text.hpp"
#include "optim/registry.hpp"

namespace optim {
namespace {

std::vector<std::string> role_names() {
  std::vector<std::string> names;
  for (const auto& [name, role] : kRoleNames) names.emplace_back(name);
  return names;
}

std::optional<base::Pattern> pattern_of(const std::string& text) {
  if (!base::pattern_problem(text).empty()) return {};
  return base::Pattern(text);
}

}  // namespace

void Rule::bind(config::Table& t) {
  t.key("match", match,
        "regular expression that must match the whole parameter path; empty, beside `of` = all "
        "paths; the first rule that matches wins");
  t.key("of", of,
        "only parameters of these roles: \"norm\" (scales and biases of norms), \"bias\" (other "
        "biases), \"weight\" (the rest); empty = all")
      .one_of(role_names());
  t.key("decay_scale", decay_scale,
        "times weight_decay; -1 = 1 for weights named kernel or weight, 0 for the rest")
      .min(-1);
  t.key("lr_scale", lr_scale, "times learning_rate").min(0);
  t.key("schedule", schedule, "name of a [schedule.NAME] table");
  t.key("decay_schedule", decay_schedule,
        "name of a [schedule.NAME] table that multiplies the decay; empty = "
        "optimizer.decay_schedule");
  t.key("frozen", frozen, "never changes: no gradient, no optimizer state");
  t.duration("frozen_until", frozen_until,
             "until then gradients are dropped: no decay, no momentum, no share in norms");
  t.key("trust", trust, "false: optimizer.trust does not scale the gradients of these parameters");
  std::vector<std::string> kinds = methods().names();
  kinds.insert(kinds.begin(), "same");
  t.kind(
      "kind", kind, method, std::move(kinds),
      [](const std::string& name) -> std::shared_ptr<config::Table::Variant> {
        return name == "same" ? nullptr : methods().at(name).make_options();
      },
      "optimizer of these parameters, with its keys in this table; same: the optimizer of "
      "[optimizer]");
  if (match.empty() && of.empty()) t.error("match", "missing; give match, of, or both");
  if (frozen && frozen_until.set())
    t.error("frozen_until", "frozen = true freezes for the whole run; give one of the two");
  if (decay_scale < 0 && decay_scale > -1) t.error("decay_scale", "must be -1 or at least 0");
  if (!match.empty() && match.front() == '/')
    t.error("match", "parameter paths do not begin with \"/\"");
  if (std::string problem = base::pattern_problem(match); !problem.empty())
    t.error("match", problem);
}

void LossScaleOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("init", init, "scale of a new run's loss; powers of two round nothing")
      .min(1)
      .max(0x1p60)
      .on_resume(may);
  t.key("growth", growth, "times the scale, after growth_interval updates without an overflow")
      .min(1)
      .max(1024)
      .on_resume(may);
  t.key("backoff", backoff, "times the scale after an overflow, whose step makes no update")
      .above(0)
      .max(1)
      .on_resume(may);
  t.key("growth_interval", growth_interval,
        "consecutive updates without an overflow before the scale grows")
      .min(1)
      .max(10'000'000)
      .unit("steps")
      .on_resume(may);
  t.key("min", min, "least scale; guard.nonfinite decides about an overflow at this scale")
      .above(0)
      .max(0x1p60)
      .on_resume(may);
  if (backoff == 1) t.error("backoff", "1 would repeat the overflow forever; give less than 1");
  if (init < min) t.error("init", fmt::format("{:g} is less than min = {:g}", init, min));
}

void OptimizerOptions::bind(config::Table& t) {
  t.kind("kind", kind, method, methods(), "which optimizer");
  t.key("learning_rate", learning_rate,
        "scales the optimizer's direction; the schedule multiplies it")
      .required()
      .min(0);
  t.key("layer_decay", layer_decay,
        "the learning rate falls by this factor from each block of the trunk to the one before it, "
        "so that a loaded trunk changes least near the images: block k of n has layer_decay^(n + 1 "
        "- k), the stem is block 0, heads and other parts have the whole rate. 1: off; fine-tuning "
        "often takes 0.65 to 0.9")
      .above(0)
      .max(1);
  t.key("weight_decay", weight_decay, "times weight; decay_form says where it is added").min(0);
  t.choice("decay_form", decay_form,
           {{"schedule", DecayForm::schedule},
            {"rate", DecayForm::rate},
            {"gradient", DecayForm::gradient}},
           "schedule: decoupled, times the schedule but not learning_rate; rate: decoupled, times "
           "both, as PyTorch's AdamW; gradient: added to the gradient before the optimizer, as "
           "PyTorch's SGD and Adam");
  t.key("decay_schedule", decay_schedule,
        "name of a [schedule.NAME] table that multiplies weight_decay; empty = constant");
  t.key("clip_norm", clip_norm, "bound on the global gradient norm, before the optimizer; 0 = off")
      .min(0);
  t.choice("clip_type", clip_type, {{"2", ClipType::two}, {"inf", ClipType::infinity}},
           "the norm of clip_norm and drop_norm: 2, or the largest absolute value");
  t.key("drop_norm", drop_norm,
        "no update in a step whose global gradient norm is not below this; 0 = off")
      .min(0);
  t.optional_table("trust", trust,
                   "LARC or LARS: with this table the gradient of each tensor is scaled by a ratio "
                   "of norms; works with any optimizer but adafactor");
  t.list("rule", rules,
         "per parameter; without rules weights named kernel or weight decay and the rest does not");
  check(t);
}

void OptimizerOptions::check(config::Table& t) const {
  auto check_method = [&](const config::Table::Variant* options, const std::string& name) {
    const auto* chosen = dynamic_cast<const MethodOptions*>(options);
    if (!chosen || chosen->reads_gradients_once()) return;
    const std::string why = fmt::format("{} reads gradients before its update", name);
    if (trust) t.error("trust", why + ", so no ratio can scale them; use another kind");
    if (decay_form == DecayForm::gradient)
      t.error("decay_form", why + "; use \"schedule\" or \"rate\"");
  };
  check_method(method.get(), kind);
  for (const Rule& rule : rules) check_method(rule.method.get(), rule.kind);
  if (trust && weight_decay > 0 && decay_form != DecayForm::gradient)
    t.error("decay_form",
            "with [optimizer.trust] the decay is part of the scaled gradient; use \"gradient\"");
  for (size_t r = 0; r < rules.size(); ++r)
    if (!rules[r].trust && !trust)
      t.error(fmt::format("rule.{}.trust", r),
              "applies only with [optimizer.trust]; add that table, or leave the key out");
}

const MethodOptions& OptimizerOptions::method_options(int rule) const {
  const auto& chosen = rule < 0 ? method : rules[size_t(rule)].method;
  if (chosen) {
    auto* options = dynamic_cast<const MethodOptions*>(chosen.get());
    CHECK(options, "optimizer options of another family");
    return *options;
  }
  CHECK(rule < 0, "rule {} has no optimizer of its own", rule);
  if (!defaults_) defaults_ = methods().at(kind).make_options();
  return *defaults_;
}

namespace {

// A path in two parts, at its last '/' or '.'.
struct Leaf {
  std::string_view parent, name;
  explicit Leaf(std::string_view path) {
    const size_t at = path.find_last_of("/.");
    name = at == path.npos ? path : path.substr(at + 1);
    if (at != path.npos) parent = path.substr(0, at);
  }
};

// big_vision's default: leaves named kernel, but not a top-level one. Leaves with PyTorch's names
// of weights decay, too.
bool decays_by_default(const std::string& path, ParameterRole role) {
  const Leaf leaf(path);
  if (role != ParameterRole::weight || leaf.parent.empty()) return false;
  if (leaf.name == "kernel") return path[leaf.parent.size()] == '/';
  return leaf.name == "weight" || leaf.name == "weight_v" || leaf.name == "weight_g";
}

std::string some_of(const std::vector<std::string>& names) {
  const size_t shown = std::min<size_t>(names.size(), 6);
  std::string text = base::join(std::span(names).first(shown), ", ");
  return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

// Gives each parameter the policy of the first rule that matches its path. Collects the rules and
// schedules that contradict each other or that nothing uses.
class PolicyResolver {
 public:
  PolicyResolver(const OptimizerOptions& options, const ScheduleTables& tables,
                 const std::vector<std::string>& paths, const std::vector<ParameterRole>& roles,
                 const Clock& clock)
      : options_(options),
        rules_(options.rules),
        tables_(tables),
        paths_(paths),
        roles_(roles),
        clock_(clock) {
    for (const Rule& rule : rules_) patterns_.push_back(pattern_of(rule.pattern()));
    matches_.resize(rules_.size());
    reached_.resize(rules_.size());
  }

  Policies resolve() {
    out_.schedules = {"default"};
    out_.parameters.resize(paths_.size());
    check_schedule_names();
    for (size_t p = 0; p < paths_.size(); ++p) assign(p);
    check_rules();
    check_schedules_are_used();
    return std::move(out_);
  }

 private:
  void check_schedule_names() {
    std::vector<std::string> known{"default"};
    for (auto& [name, table] : tables_)
      if (name != "default") known.push_back(name);
    auto check = [&](const std::string& key, const std::string& schedule) {
      if (std::find(known.begin(), known.end(), schedule) != known.end()) return;
      const std::string near = base::nearest_name(schedule, known);
      out_.problems.push_back(
          {key,
           fmt::format("no table [schedule.{}]; there are: {}{}", schedule, base::join(known, ", "),
                       near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near))});
    };
    if (!options_.decay_schedule.empty())
      check("optimizer.decay_schedule", options_.decay_schedule);
    for (size_t r = 0; r < rules_.size(); ++r) {
      check(fmt::format("optimizer.rule.{}.schedule", r), rules_[r].schedule);
      if (const std::string& decay = rules_[r].decay_schedule; !decay.empty())
        check(fmt::format("optimizer.rule.{}.decay_schedule", r), decay);
    }
  }

  bool fits(size_t rule, size_t p) const {
    const std::vector<std::string>& of = rules_[rule].of;
    if (!of.empty() &&
        std::find(of.begin(), of.end(), base::name_of(kRoleNames, roles_[p])) == of.end())
      return false;
    return patterns_[rule] && patterns_[rule]->matches(paths_[p]);
  }

  // Returns the first rule that fits the parameter, or null. Marks all rules that fit.
  const Rule* first_match(size_t p) {
    const Rule* first = nullptr;
    for (size_t r = 0; r < rules_.size(); ++r) {
      if (!fits(r, p)) continue;
      matches_[r] = true;
      if (first) continue;
      first = &rules_[r];
      reached_[r] = true;
    }
    return first;
  }

  void assign(size_t p) {
    ParameterPolicy& policy = out_.parameters[p];
    policy.decay_scale = decays_by_default(paths_[p], roles_[p]) ? 1 : 0;
    if (rules_.empty()) {
      used_.insert("default");
      use_decay_schedule(policy, options_.decay_schedule);
      return;
    }
    const Rule* rule = first_match(p);
    if (!rule) {
      uncovered_.push_back(paths_[p]);
      return;
    }
    policy.frozen = rule->frozen;
    policy.lr_scale = rule->lr_scale;
    if (rule->decay_scale >= 0) policy.decay_scale = rule->decay_scale;
    if (policy.frozen) return;
    policy.schedule = schedule_index(rule->schedule);
    used_.insert(rule->schedule);
    use_decay_schedule(
        policy, rule->decay_schedule.empty() ? options_.decay_schedule : rule->decay_schedule);
    policy.trust = rule->trust;
    if (rule->method) policy.rule = int(rule - rules_.data());
    if (rule->frozen_until.set() && clock_.total_steps > 0)
      policy.frozen_steps =
          rule->frozen_until.steps(clock_.global_batch, clock_.data_size, clock_.total_steps);
  }

  // A tensor without decay uses no decay schedule.
  void use_decay_schedule(ParameterPolicy& policy, const std::string& name) {
    if (name.empty() || policy.decay_scale == 0) return;
    policy.decay_schedule = schedule_index(name);
    used_.insert(name);
  }

  int schedule_index(const std::string& name) {
    auto it = std::find(out_.schedules.begin(), out_.schedules.end(), name);
    if (it == out_.schedules.end()) it = out_.schedules.insert(it, name);
    return int(it - out_.schedules.begin());
  }

  void check_rules() {
    if (!uncovered_.empty())
      out_.problems.push_back(
          {"optimizer.rule",
           fmt::format("no rule matches {} parameter{}: {}; end the list with match = \".*\"",
                       uncovered_.size(), uncovered_.size() == 1 ? "" : "s", some_of(uncovered_))});
    for (size_t r = 0; r < rules_.size(); ++r) {
      if (!patterns_[r]) continue;  // bind has reported it
      const std::string key = fmt::format("optimizer.rule.{}.match", r);
      if (!matches_[r])
        out_.problems.push_back(
            {key,
             fmt::format("\"{}\"{} matches no parameter; paths look like {}", rules_[r].pattern(),
                         roles_text(rules_[r]), paths_.empty() ? "" : paths_[paths_.size() / 2])});
      else if (!reached_[r])
        out_.problems.push_back({key, fmt::format("\"{}\"{} is never reached: the rules before it "
                                                  "take all that it matches; put it before them",
                                                  rules_[r].pattern(), roles_text(rules_[r]))});
    }
  }

  static std::string roles_text(const Rule& rule) {
    return rule.of.empty() ? "" : fmt::format(" of {}", base::join(rule.of, ", "));
  }

  void check_schedules_are_used() {
    const bool resolved = out_.problems.empty();  // otherwise the schedules in use are not known
    for (const auto& [name, table] : tables_) {
      if (used_.count(name)) continue;
      const std::string& schedule = name;  // Clang before 16 lets no lambda capture `name`
      const bool named = options_.decay_schedule == schedule ||
                         std::any_of(rules_.begin(), rules_.end(), [&](const Rule& r) {
                           return r.schedule == schedule || r.decay_schedule == schedule;
                         });
      if (!resolved && (named || name == "default")) continue;
      out_.problems.push_back(
          {"schedule." + name,
           named ? "no parameter uses this schedule: each one that its [[optimizer.rule]] matches "
                   "is frozen, has no decay, or belongs to an earlier rule"
                 : fmt::format("no [[optimizer.rule]] names this schedule; parameters without one "
                               "use [schedule.default]{}",
                               name == "default" ? ", and every rule names another" : "")});
    }
  }

  const OptimizerOptions& options_;
  const std::vector<Rule>& rules_;
  const ScheduleTables& tables_;
  const std::vector<std::string>& paths_;
  const std::vector<ParameterRole>& roles_;
  const Clock& clock_;
  std::vector<std::optional<base::Pattern>>
      patterns_;                         // by rule; none if it is not a regular expression
  std::vector<bool> matches_, reached_;  // by rule: matches a path; is a path's first match
  std::set<std::string> used_;           // schedules of parameters that are not frozen
  std::vector<std::string> uncovered_;   // paths without a rule
  Policies out_;
};

}  // namespace

std::vector<ParameterRole> roles_of(const std::vector<shard::Parameter>& parameters) {
  std::set<std::string_view> norms;
  for (const shard::Parameter& p : parameters)
    if (const Leaf leaf(p.path);
        p.shape.size() == 1 && (leaf.name == "scale" || leaf.name == "weight"))
      norms.insert(leaf.parent);
  std::vector<ParameterRole> roles;
  for (const shard::Parameter& p : parameters) {
    const Leaf leaf(p.path);
    const bool bias = leaf.name == "bias", scale = leaf.name == "scale" || leaf.name == "weight";
    if ((bias || scale) && norms.count(leaf.parent) && p.shape.size() == 1)
      roles.push_back(ParameterRole::norm);
    else
      roles.push_back(bias ? ParameterRole::bias : ParameterRole::weight);
  }
  return roles;
}

namespace {
// Reports the first parameter of each rule that the rule's optimizer cannot update.
void check_methods(const OptimizerOptions& options, const std::vector<shard::Parameter>& parameters,
                   Policies& out) {
  std::set<int> reported;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const ParameterPolicy& policy = out.parameters[p];
    if (policy.frozen || reported.count(policy.rule)) continue;
    const std::string problem = options.method_options(policy.rule).problem(parameters[p]);
    if (problem.empty()) continue;
    reported.insert(policy.rule);
    out.problems.push_back({policy.rule < 0 ? std::string("optimizer.kind")
                                            : fmt::format("optimizer.rule.{}.kind", policy.rule),
                            problem});
  }
}
}  // namespace

Policies resolve_policies(const OptimizerOptions& options, const ScheduleTables& tables,
                          const std::vector<shard::Parameter>& parameters, const Clock& clock) {
  auto is_state = [](const shard::Parameter& p) { return p.kind == shard::ParameterKind::state; };
  std::vector<shard::Parameter> others;
  for (const shard::Parameter& p : parameters)
    if (!is_state(p)) others.push_back(p);
  std::vector<std::string> paths;
  for (const shard::Parameter& p : others) paths.push_back(p.path);
  const std::vector<ParameterRole> roles = roles_of(others);
  Policies out = PolicyResolver(options, tables, paths, roles, clock).resolve();
  check_methods(options, others, out);
  int levels = 0;
  for (const shard::Parameter& p : parameters) levels = std::max(levels, p.level + 1);
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (is_state(parameters[p]))
      out.parameters.insert(out.parameters.begin() + std::ptrdiff_t(p), {.frozen = true});
    else if (parameters[p].unit_rows && out.parameters[p].frozen)
      out.problems.push_back(
          {"optimizer.rule",
           fmt::format("{} gets rows of unit length after each update, so frozen = true would "
                       "change what it holds; use frozen_until_steps, as large as the run",
                       parameters[p].path)});
    if (parameters[p].level >= 0)
      out.parameters[p].lr_scale *=
          base::math::pow(options.layer_decay, levels - parameters[p].level);
  }
  return out;
}

Policies resolve_policies(const OptimizerOptions& options, const ScheduleTables& tables,
                          const std::vector<std::string>& paths) {
  std::vector<shard::Parameter> parameters(paths.size());
  for (size_t p = 0; p < paths.size(); ++p) parameters[p].path = paths[p];
  return resolve_policies(options, tables, parameters);
}

std::vector<Problem> schedule_problems(const ScheduleTables& tables, const Clock& clock) {
  std::vector<Problem> out;
  for (const auto& [name, table] : tables)
    for (Problem& p : table.problems(clock, "schedule." + name)) out.push_back(std::move(p));
  return out;
}

std::vector<Schedule> make_schedules(const std::vector<std::string>& names,
                                     const ScheduleTables& tables, const Clock& clock) {
  std::vector<Schedule> out;
  for (const std::string& name : names) {
    auto it = tables.find(name);
    out.push_back(it == tables.end() ? Schedule() : it->second.make(clock, "schedule." + name));
  }
  return out;
}

}  // namespace optim
