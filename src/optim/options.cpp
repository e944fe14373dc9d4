// SPDX-License-Identifier: Apache-2.0
#include "optim/options.hpp"

#include <algorithm>
#include <optional>
#include <regex>
#include <set>

#include "base/pattern.hpp"
#include "base/text.hpp"
#include "optim/registry.hpp"

namespace optim {
namespace {

std::optional<std::regex> pattern_of(const std::string& text) {
  if (!base::pattern_problem(text).empty()) return {};
  return std::regex(text);
}

}  // namespace

void Rule::bind(config::Table& t) {
  t.key("match", match,
        "regular expression that must match the whole parameter path; the first rule that matches "
        "wins")
      .required();
  t.key("decay_scale", decay_scale,
        "times weight_decay; -1 = 1 for parameters named kernel, 0 for the rest")
      .min(-1);
  t.key("lr_scale", lr_scale, "times learning_rate").min(0);
  t.key("schedule", schedule, "name of a [schedule.NAME] table");
  t.key("frozen", frozen, "never changes: no gradient, no optimizer state");
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
  if (backoff == 1) t.error("backoff", "1 would repeat the overflow for ever");
  if (init < min) t.error("init", fmt::format("{:g} lies below min = {:g}", init, min));
}

void OptimizerOptions::bind(config::Table& t) {
  t.kind("kind", kind, method, methods(), "which optimizer");
  t.key("learning_rate", learning_rate,
        "scales the optimizer's direction; the schedule multiplies it")
      .required()
      .min(0);
  t.key("weight_decay", weight_decay, "decoupled: times weight and schedule, but not learning_rate")
      .min(0);
  t.key("clip_norm", clip_norm, "bound on the global gradient norm, before the optimizer; 0 = off")
      .min(0);
  t.list("rule", rules,
         "per parameter; without rules parameters named kernel decay and the rest does not");
}

const MethodOptions& OptimizerOptions::method_options() const {
  if (method) {
    auto* options = dynamic_cast<const MethodOptions*>(method.get());
    CHECK(options, "optimizer options of another family");
    return *options;
  }
  if (!defaults_) defaults_ = methods().at(kind).make_options();
  return *defaults_;
}

namespace {

// big_vision's default: leaves named kernel, but not a top-level one.
bool decays_by_default(const std::string& path) {
  const std::string_view tail = "/kernel";
  return path.size() > tail.size() - 1 && path.ends_with(tail);
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
                 const std::vector<std::string>& paths)
      : rules_(options.rules), tables_(tables), paths_(paths) {
    for (const Rule& rule : rules_) patterns_.push_back(pattern_of(rule.match));
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
    for (size_t r = 0; r < rules_.size(); ++r) {
      const std::string& schedule = rules_[r].schedule;
      if (std::find(known.begin(), known.end(), schedule) != known.end()) continue;
      const std::string near = base::nearest_name(schedule, known);
      out_.problems.push_back(
          {fmt::format("optimizer.rule.{}.schedule", r),
           fmt::format("no table [schedule.{}]; there are: {}{}", schedule, base::join(known, ", "),
                       near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near))});
    }
  }

  // Returns the first rule that matches the path, or null. Marks all rules that match.
  const Rule* first_match(const std::string& path) {
    const Rule* first = nullptr;
    for (size_t r = 0; r < rules_.size(); ++r) {
      if (!patterns_[r] || !std::regex_match(path, *patterns_[r])) continue;
      matches_[r] = true;
      if (first) continue;
      first = &rules_[r];
      reached_[r] = true;
    }
    return first;
  }

  void assign(size_t p) {
    ParameterPolicy& policy = out_.parameters[p];
    policy.decay_scale = decays_by_default(paths_[p]) ? 1 : 0;
    if (rules_.empty()) {
      used_.insert("default");
      return;
    }
    const Rule* rule = first_match(paths_[p]);
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
            {key, fmt::format("\"{}\" matches no parameter; paths look like {}", rules_[r].match,
                              paths_.empty() ? "" : paths_[paths_.size() / 2])});
      else if (!reached_[r])
        out_.problems.push_back({key, fmt::format("\"{}\" is never reached: the rules before it "
                                                  "take all that it matches; put it before them",
                                                  rules_[r].match)});
    }
  }

  void check_schedules_are_used() {
    const bool resolved = out_.problems.empty();  // otherwise the schedules in use are not known
    for (const auto& [name, table] : tables_) {
      if (used_.count(name)) continue;
      const std::string& schedule = name;  // Clang before 16 lets no lambda capture `name`
      const bool named = std::any_of(rules_.begin(), rules_.end(),
                                     [&](const Rule& r) { return r.schedule == schedule; });
      if (!resolved && (named || name == "default")) continue;
      out_.problems.push_back(
          {"schedule." + name,
           named ? "no parameter uses this schedule: those that a [[optimizer.rule]] with it "
                   "matches are frozen or taken by an earlier rule"
                 : fmt::format("no [[optimizer.rule]] names this schedule; parameters without one "
                               "use [schedule.default]{}",
                               name == "default" ? ", and every rule names another" : "")});
    }
  }

  const std::vector<Rule>& rules_;
  const ScheduleTables& tables_;
  const std::vector<std::string>& paths_;
  std::vector<std::optional<std::regex>> patterns_;  // by rule; none if it is no regular expression
  std::vector<bool> matches_, reached_;              // by rule: some path; as the first one
  std::set<std::string> used_;                       // schedules of parameters that are not frozen
  std::vector<std::string> uncovered_;               // paths without a rule
  Policies out_;
};

}  // namespace

Policies resolve_policies(const OptimizerOptions& options, const ScheduleTables& tables,
                          const std::vector<std::string>& paths) {
  return PolicyResolver(options, tables, paths).resolve();
}

Policies resolve_policies(const OptimizerOptions& options, const ScheduleTables& tables,
                          const std::vector<shard::Parameter>& parameters) {
  auto is_state = [](const shard::Parameter& p) { return p.kind == shard::ParameterKind::state; };
  std::vector<std::string> paths;
  for (const shard::Parameter& p : parameters)
    if (!is_state(p)) paths.push_back(p.path);
  Policies out = resolve_policies(options, tables, paths);
  for (size_t p = 0; p < parameters.size(); ++p)
    if (is_state(parameters[p]))
      out.parameters.insert(out.parameters.begin() + std::ptrdiff_t(p), {.frozen = true});
  return out;
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
