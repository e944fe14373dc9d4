// SPDX-License-Identifier: Apache-2.0
#include "train/tracker.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"

namespace train {

void EarlyStopOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("metric", metric, "EVAL/METRIC:min or :max that must keep improving").on_resume(may);
  t.key("patience_evals", patience_evals,
        "evaluations without improvement after which the run counts as finished; 0 = off")
      .min(0)
      .on_resume(may);
  t.key("min_change", min_change, "smaller improvements do not count").min(0).on_resume(may);
  t.key("not_before_fraction", not_before_fraction, "part of the run before which it does not stop")
      .min(0)
      .max(1)
      .on_resume(may);
  if (patience_evals > 0 && metric.empty())
    t.error("metric", "early_stop.patience_evals needs a metric");
}

namespace {

// Returns our name of a metric that has the published code's name: prec@K is topK, Nshot-seed-S is
// Nshot_seedS. Other names are ours.
std::string own_name(const std::string& metric) {
  constexpr std::string_view kPrecision = "prec@", kSeed = "shot-seed-";
  if (metric.starts_with(kPrecision)) return "top" + metric.substr(kPrecision.size());
  if (const size_t at = metric.find(kSeed); at != metric.npos)
    return metric.substr(0, at) + "shot_seed" + metric.substr(at + kSeed.size());
  return metric;
}

// Checks that the evaluator and its metric exist. Error(Exit::config) names what exists.
void check_metric(const std::string& evaluator, const std::string& metric,
                  const std::map<std::string, eval::EvalOptions>& evals) {
  auto hint = [](const std::string& name, const std::vector<std::string>& names) {
    std::string near = base::nearest_name(name, names);
    return near.empty() ? "; there are: " + base::join(names, ", ")
                        : "; did you mean \"" + near + "\"?";
  };
  auto found = evals.find(evaluator);
  if (found == evals.end()) {
    std::vector<std::string> names;
    for (const auto& [name, options] : evals) names.push_back(name);
    base::fail(base::Exit::config, "there is no [eval.{}]{}", evaluator, hint(evaluator, names));
  }
  if (!found->second.options) return;  // its kind is unknown, which is reported elsewhere
  std::vector<std::string> metrics;
  for (const eval::Metric& m : eval::metrics_of(found->second)) metrics.push_back(m.name);
  if (std::find(metrics.begin(), metrics.end(), metric) == metrics.end())
    base::fail(base::Exit::config, "[eval.{}] yields no \"{}\"{}", evaluator, metric,
               hint(metric, metrics));
}

}  // namespace

MetricChoice parse_metric_choice(const std::string& text,
                                 const std::map<std::string, eval::EvalOptions>& evals) {
  size_t slash = text.find('/'), colon = text.rfind(':');
  std::string how = colon == text.npos ? "" : text.substr(colon + 1);
  if (slash == text.npos || colon == text.npos || colon < slash || (how != "min" && how != "max"))
    base::fail(
        base::Exit::config,
        "\"{}\" is not EVAL/METRIC:min or EVAL/METRIC:max, for example \"val/perplexity:min\"",
        text);
  MetricChoice choice{text.substr(0, slash), own_name(text.substr(slash + 1, colon - slash - 1)),
                      how == "min"};
  check_metric(choice.evaluator, choice.metric, evals);
  return choice;
}

ThresholdChoice parse_threshold(const std::string& text,
                                const std::map<std::string, eval::EvalOptions>& evals) {
  Bound bound;
  const bool readable = bound.parse(text);
  const size_t slash = bound.of.find('/');
  if (!readable || slash == text.npos)
    base::fail(base::Exit::config,
               "\"{}\" is not EVAL/METRIC:below:VALUE or EVAL/METRIC:above:VALUE, for example "
               "\"val/perplexity:below:30\"",
               text);
  ThresholdChoice choice{bound.of.substr(0, slash), own_name(bound.of.substr(slash + 1)), bound};
  check_metric(choice.evaluator, choice.metric, evals);
  return choice;
}

bool Threshold::update(const std::string& evaluator,
                       const std::vector<std::pair<std::string, double>>& values) {
  if (choice_.evaluator.empty() || evaluator != choice_.evaluator) return false;
  for (const auto& [metric, value] : values) {
    if (metric != choice_.metric) continue;
    const bool beyond = choice_.bound.holds(value);
    return std::exchange(beyond_, double(beyond)) == 0 && beyond;
  }
  return false;
}

void Threshold::members(MemberList& list) {
  if (!choice_.evaluator.empty()) list.number("passes_beyond", beyond_);
}

Tracker::Tracker(std::string name, MetricChoice choice, double min_change)
    : name_(std::move(name)), choice_(std::move(choice)), min_change_(min_change) {}

bool Tracker::update(const std::string& evaluator,
                     const std::vector<std::pair<std::string, double>>& values, int64_t step) {
  if (name_.empty() || evaluator != choice_.evaluator) return false;
  for (const auto& [metric, value] : values) {
    if (metric != choice_.metric) continue;
    double gain = choice_.smallest ? value_ - value : value - value_;
    bool better = step_ < 0 || (min_change_ > 0 ? gain >= min_change_ : gain > 0);
    if (better) {
      value_ = value;
      step_ = step;
      waiting_ = 0;
    } else
      ++waiting_;
    return better;
  }
  return false;
}

std::string Tracker::text() const { return choice_.evaluator + "/" + choice_.metric; }

void Tracker::members(MemberList& list) {
  if (name_.empty()) return;
  list.number(name_ + "_value", value_);
  list.number(name_ + "_step", step_);
  list.number(name_ + "_waiting", waiting_);
}

}  // namespace train
