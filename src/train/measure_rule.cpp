// SPDX-License-Identifier: Apache-2.0
#include "train/measure_rule.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/text.hpp"

namespace train {

bool Bound::parse(const std::string& text) {
  const size_t last = text.rfind(':'),
               side = last == text.npos || last == 0 ? text.npos : text.rfind(':', last - 1);
  if (side == text.npos || side == 0) return false;
  const std::string how = text.substr(side + 1, last - side - 1);
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + last + 1, end, value);
  of = text.substr(0, side);
  below = how == "below";
  return (below || how == "above") && parsed.ec == std::errc() && parsed.ptr == end &&
         std::isfinite(value);
}

Bound parse_measure_rule(const std::string& text, const std::vector<models::Measure>& measures) {
  Bound rule;
  if (!rule.parse(text))
    base::fail(base::Exit::config,
               "\"{}\" is not MEASURE:below:VALUE or MEASURE:above:VALUE, for example "
               "\"loss:below:2.5\"",
               text);
  std::vector<std::string> names;
  for (const models::Measure& m : measures) names.push_back(m.name);
  if (std::ranges::find(names, rule.of) == names.end()) {
    const std::string near = base::nearest_name(rule.of, names);
    base::fail(
        base::Exit::config, "the model has no measure \"{}\"{}", rule.of,
        near.empty() ? "; it has " + base::join(names, ", ") : "; did you mean \"" + near + "\"?");
  }
  return rule;
}

WatchedMeasures::WatchedMeasures(const std::map<std::string, eval::EvalOptions>& evals) {
  for (const auto& [name, options] : evals)
    if (Bound rule; rule.parse(options.when))
      values_[rule.of] = std::numeric_limits<double>::quiet_NaN();
}

void WatchedMeasures::update(const std::vector<models::Measure>& measures,
                             const std::vector<double>& values) {
  for (size_t i = 0; i < measures.size() && i < values.size(); ++i)
    if (const auto watched = values_.find(measures[i].name); watched != values_.end())
      watched->second = values[i];
}

std::string WatchedMeasures::problem(const std::string& text) const {
  Bound rule;
  if (!rule.parse(text)) return "";
  const double value = values_.at(rule.of);
  if (rule.holds(value)) return "";
  return fmt::format("{}={:.6g} is not {} {:.6g}", rule.of, value, rule.below ? "below" : "above",
                     rule.value);
}

void WatchedMeasures::members(MemberList& list) {
  for (auto& [name, value] : values_) list.number("watched_" + name, value);
}

}  // namespace train
