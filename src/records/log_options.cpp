// SPDX-License-Identifier: Apache-2.0
#include "records/log_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/names.hpp"
#include "base/pattern.hpp"
#include "base/text.hpp"

namespace records {
namespace {
std::string group_problem(const std::vector<std::string>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    if (std::find(groups.begin(), groups.begin() + long(i), groups[i]) != groups.begin() + long(i))
      return fmt::format("\"{}\" is given twice", groups[i]);
    if (std::string problem = base::pattern_problem(groups[i]); !problem.empty())
      return fmt::format("\"{:.80}\": {}", groups[i], problem);
  }
  return "";
}

template <class Names>
std::string unknown_name(const char* what, const std::string& name, const Names& names) {
  std::vector<std::string> all;
  for (const auto& one : names) all.push_back(one.first);
  if (std::find(all.begin(), all.end(), name) != all.end()) return "";
  return fmt::format("\"{:.80}\" is not a {}; known: {}", name, what, base::join(all, ", "));
}

std::string memory_problem(const std::vector<int64_t>& steps) {
  for (const int64_t step : steps)
    if (step < 1) return fmt::format("{} is not a step; the first step is 1", step);
  return "";
}

std::string levels_problem(const std::map<std::string, std::string>& levels) {
  for (const auto& [component, level] : levels)
    for (const std::string& problem :
         {unknown_name("component", component, base::log::kComponentNames),
          unknown_name("level", level, base::log::kLevelNames)})
      if (!problem.empty()) return problem;
  return "";
}

std::vector<std::string> looked_names() {
  std::vector<std::string> names;
  for (const auto& [name, looked] : kLookedNames) names.emplace_back(name);
  return names;
}

bool matches_any(const std::string& expression, const std::vector<std::string>& paths) {
  const base::Pattern match(expression);
  return std::any_of(paths.begin(), paths.end(),
                     [&](const std::string& path) { return match.matches(path); });
}

std::string no_match(const std::string& expression, const char* what,
                     const std::vector<std::string>& paths) {
  return fmt::format("\"{}\" matches no {}; paths look like {}", expression, what,
                     paths.empty() ? "" : paths[paths.size() / 2]);
}

void check_rules(config::Deck& deck, const char* name, const std::vector<LookRule>& rules,
                 const std::vector<std::string>& parameters,
                 const std::vector<std::string>& blocks) {
  for (size_t i = 0; i < rules.size(); ++i) {
    if (!base::pattern_problem(rules[i].match).empty()) continue;
    const std::vector<std::string>& of = rules[i].of;
    const auto of_blocks = std::count(of.begin(), of.end(), "activations");
    const std::string key = fmt::format("log.{}.{}.match", name, i);
    if (of_blocks < std::ssize(of) && !matches_any(rules[i].match, parameters))
      deck.error(key, no_match(rules[i].match, "parameter", parameters));
    else if (of_blocks > 0 && !matches_any(rules[i].match, blocks))
      deck.error(key, no_match(rules[i].match, "block of the model (activations belong to blocks)",
                               blocks));
  }
}
}  // namespace

void LookRule::bind(config::Table& t) {
  using config::OnResume;
  t.key("match", match,
        "regular expression that must match the whole path of a parameter or, of activations, of a "
        "block")
      .on_resume(OnResume::may_change);
  t.key("of", of,
        "\"weights\" after the update; \"gradients\", summed over the batch, before clipping; "
        "\"updates\": how weights change; \"activations\": outputs of blocks")
      .one_of(looked_names())
      .on_resume(OnResume::may_change);
  t.key("every_steps", every_steps,
        "steps between two measurements; also at the first and the last step of the run")
      .min(1)
      .unit("steps")
      .on_resume(OnResume::may_change);
  if (const std::string problem = base::pattern_problem(match); !problem.empty())
    t.error("match", problem);
  if (of.empty()) t.error("of", "names nothing");
}

void LogOptions::check_paths(config::Deck& deck, const std::vector<std::string>& parameters,
                             const std::vector<std::string>& blocks) const {
  for (const std::string& group : groups)
    if (!matches_any(group, parameters))
      deck.error("log.groups", no_match(group, "parameter", parameters));
  check_rules(deck, "histograms", histograms, parameters, blocks);
  check_rules(deck, "rms", rms, parameters, blocks);
}

void LogOptions::set_levels() const {
  base::log::set_level({}, level);
  for (const auto& [component, name] : levels)
    base::log::set_level(base::value_of(base::log::kComponentNames, component),
                         base::value_of(base::log::kLevelNames, name));
}

bool LogOptions::wants_memory(int64_t step) const {
  return std::ranges::find(memory_steps, step) != memory_steps.end();
}

void LogOptions::bind(config::Table& t) {
  using config::OnResume;
  t.key("console_every_steps", console_every_steps,
        "steps between two console lines; the first steps and the last one always have a line")
      .min(1)
      .unit("steps")
      .on_resume(OnResume::may_change);
  t.key("console_first_steps", console_first_steps,
        "number of first steps that all have a console line")
      .min(0)
      .unit("steps")
      .on_resume(OnResume::may_change);
  t.key("console_window", console_window,
        "the console shows the median of each measure, such as the loss, over this many last "
        "steps; 1 = the value of the step. Files always hold the values of each step")
      .min(1)
      .max(100000)
      .unit("steps")
      .on_resume(OnResume::may_change);
  t.key("metrics_every_steps", metrics_every_steps,
        "rows of metrics.h5 and metrics.jsonl, never smoothed")
      .min(1)
      .unit("steps")
      .on_resume(OnResume::may_change);
  t.key("flush_s", flush_s,
        "time between flushes. If a machine dies, at most this much of metrics.jsonl is lost; "
        "metrics.h5 is rewritten at most once in this time")
      .min(0)
      .unit("s")
      .on_resume(OnResume::may_change);
  t.key("groups", groups,
        "regular expressions on parameter paths: l2 of gradients, parameters and updates for each")
      .check([this] { return group_problem(groups); })
      .on_resume(OnResume::may_change);
  t.key("epoch_means", epoch_means,
        "also give the means of the measures over each epoch of training, in the row and on a line "
        "of the step that ends it")
      .on_resume(OnResume::may_change);
  t.choice("level", level, base::log::kLevelNames,
           "lines about the work of the components: warning: only warnings; info: steps, "
           "evaluations, checkpoints; debug and trace: details for finding faults. Lines about the "
           "start and the end of a run are always written")
      .on_resume(OnResume::may_change);
  t.key(
       "levels", levels,
       "{ COMPONENT = LEVEL }, as in { checkpoint = \"debug\" }: other levels of run, data, train, "
       "eval or checkpoint")
      .check([this] { return levels_problem(levels); })
      .on_resume(OnResume::may_change);
  t.key("memory_steps", memory_steps,
        "steps after which the memory of every rank by category goes to logs/memory.txt, and that "
        "of "
        "rank 0 to the row of the step: memory_mib[weights] and so on")
      .check([this] { return memory_problem(memory_steps); })
      .unit("steps")
      .on_resume(OnResume::may_change);
  t.key("samples", samples,
        "write step, position and key of every example trained on to logs/samples, a file per rank")
      .on_resume(OnResume::may_change);
  t.key("tensorboard", tensorboard,
        "also write rows, histograms, captions with images and the deck to RUN/tensorboard, as "
        "TensorBoard reads them")
      .on_resume(OnResume::may_change);
  t.list("histograms", histograms,
         "count the values of tensors by size, for metrics.h5 and the report page. A step with "
         "counts takes longer; its bits are the same");
  t.list("rms", rms, "root mean squares of tensors, in the same way");
}

}  // namespace records
