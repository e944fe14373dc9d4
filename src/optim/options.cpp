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

}  // namespace

Policies resolve_policies(const OptimizerOptions& options, const ScheduleTables& tables,
                          const std::vector<std::string>& paths) {
  Policies out;
  out.schedules = {"default"};
  out.parameters.resize(paths.size());
  auto schedule_index = [&](const std::string& name) {
    auto it = std::find(out.schedules.begin(), out.schedules.end(), name);
    if (it == out.schedules.end()) it = out.schedules.insert(it, name);
    return int(it - out.schedules.begin());
  };

  std::vector<std::optional<std::regex>> patterns;  // none: bind has reported it
  std::vector<bool> matches(options.rules.size()), reached(options.rules.size());
  std::vector<std::string> known{"default"};
  for (auto& [name, table] : tables)
    if (name != "default") known.push_back(name);
  for (size_t r = 0; r < options.rules.size(); ++r) {
    const Rule& rule = options.rules[r];
    patterns.push_back(pattern_of(rule.match));
    if (!patterns.back()) matches[r] = true;
    if (std::find(known.begin(), known.end(), rule.schedule) == known.end()) {
      const std::string near = base::nearest_name(rule.schedule, known);
      out.problems.push_back(
          {fmt::format("optimizer.rule.{}.schedule", r),
           fmt::format("no table [schedule.{}]; there are: {}{}", rule.schedule,
                       base::join(known, ", "),
                       near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near))});
    }
  }

  std::set<std::string> used;  // by a parameter that changes
  std::vector<std::string> uncovered;
  for (size_t p = 0; p < paths.size(); ++p) {
    ParameterPolicy& policy = out.parameters[p];
    policy.decay_scale = decays_by_default(paths[p]) ? 1 : 0;
    if (options.rules.empty()) {
      used.insert("default");
      continue;
    }
    const Rule* first = nullptr;
    for (size_t r = 0; r < patterns.size(); ++r)
      if (patterns[r] && std::regex_match(paths[p], *patterns[r])) {
        matches[r] = true;
        if (!first) {
          first = &options.rules[r];
          reached[r] = true;
        }
      }
    if (!first) {
      uncovered.push_back(paths[p]);
      continue;
    }
    policy.frozen = first->frozen;
    policy.lr_scale = first->lr_scale;
    if (first->decay_scale >= 0) policy.decay_scale = first->decay_scale;
    if (policy.frozen) continue;
    policy.schedule = schedule_index(first->schedule);
    used.insert(first->schedule);
  }

  if (!uncovered.empty())
    out.problems.push_back(
        {"optimizer.rule",
         fmt::format("no rule matches {} parameter{}: {}; end the list with match = \".*\"",
                     uncovered.size(), uncovered.size() == 1 ? "" : "s", some_of(uncovered))});
  for (size_t r = 0; r < matches.size(); ++r)
    if (matches[r] && !reached[r] && patterns[r])
      out.problems.push_back({fmt::format("optimizer.rule.{}.match", r),
                              fmt::format("\"{}\" is never reached: the rules before it take all "
                                          "that it matches; put it before them",
                                          options.rules[r].match)});
    else if (!matches[r])
      out.problems.push_back(
          {fmt::format("optimizer.rule.{}.match", r),
           fmt::format("\"{}\" matches no parameter; paths look like {}", options.rules[r].match,
                       paths.empty() ? "" : paths[paths.size() / 2])});
  const bool resolved = out.problems.empty();  // otherwise the schedules in use are not known
  for (const auto& [name, table] : tables) {
    if (used.count(name)) continue;
    const std::string& schedule = name;  // Clang before 16 lets no lambda capture `name`
    const bool named = std::any_of(options.rules.begin(), options.rules.end(),
                                   [&](const Rule& r) { return r.schedule == schedule; });
    if (!resolved && (named || name == "default")) continue;
    out.problems.push_back(
        {"schedule." + name,
         named ? "no parameter uses this schedule: those that a [[optimizer.rule]] with it matches "
                 "are frozen or taken by an earlier rule"
               : fmt::format("no [[optimizer.rule]] names this schedule; parameters without one "
                             "use [schedule.default]{}",
                             name == "default" ? ", and every rule names another" : "")});
  }
  return out;
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
