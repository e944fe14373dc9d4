// SPDX-License-Identifier: Apache-2.0
#include "records/metric_rows.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "records/tensor_rows.hpp"

namespace records {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();
constexpr std::string_view kEvalPrefix = "/eval/";

Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// Returns a row's numbers. Its other values (kind, step, ...) identify the row.
MetricValues values_of(const Json& row) {
  MetricValues values;
  for (const auto& [name, value] : row.items()) {
    if (name == "step") continue;
    if (value.is_number()) values.emplace_back(name, value.get<double>());
    if (value == "nan") values.emplace_back(name, kNotMeasured);
    if (value == "inf") values.emplace_back(name, std::numeric_limits<double>::infinity());
    if (value == "-inf") values.emplace_back(name, -std::numeric_limits<double>::infinity());
  }
  return values;
}

// Returns the HDF5 group of a row; "" if the row has no known kind.
std::string group_of(const Json& row) {
  auto text = [&](const char* name) {
    return row.contains(name) && row[name].is_string() ? row[name].get<std::string>()
                                                       : std::string();
  };
  std::string kind = text("kind");
  if (kind == "eval") return eval_rows(text("eval"));
  const std::string of = text("of"), tensor = text("tensor");
  if (kind == "histogram" && !of.empty() && !tensor.empty()) return histogram_rows(of, tensor);
  if (kind == "rms" && !of.empty()) return rms_rows(of);
  return kind == "train" || kind == "start" ? "/" + kind : "";
}

// Returns the keys of a line that name the row's group.
Json head_of(const std::string& group) {
  if (group.starts_with(kEvalPrefix))
    return {{"kind", "eval"}, {"eval", group.substr(kEvalPrefix.size())}};
  if (is_rms(group)) return {{"kind", "rms"}, {"of", tensor_name(group)}};
  if (!is_histogram(group)) return {{"kind", group.substr(1)}};
  const std::string name = tensor_name(group);
  const size_t slash = name.find('/');
  return {{"kind", "histogram"}, {"of", name.substr(0, slash)}, {"tensor", name.substr(slash + 1)}};
}

}  // namespace

std::string eval_rows(const std::string& evaluator) { return std::string(kEvalPrefix) + evaluator; }

std::string line_of(const MetricRow& row) {
  Json line = head_of(row.group);
  line["step"] = row.step;
  for (const auto& [name, value] : row.values) {
    CHECK(!line.contains(name), "metric {} appears twice in a row", name);
    line[name] = number(value);
  }
  return line.dump() + "\n";
}

std::optional<MetricRow> metric_row_of(const std::string& line) {
  Json row = Json::parse(line, nullptr, false);
  std::string group = row.is_object() ? group_of(row) : "";
  if (group.empty() || !row.contains("step") || !row["step"].is_number_integer()) return {};
  return MetricRow{group, row["step"].get<int64_t>(), values_of(row)};
}

std::string line_with_attempt(const std::string& line, int64_t attempt) {
  Json row = Json::parse(line);
  row["attempt"] = attempt;
  return row.dump() + "\n";
}

void MetricSeries::add(int64_t step, const MetricValues& values, bool unique) {
  size_t at = steps.size();
  if (unique)
    while (at > 0 && steps[at - 1] >= step) --at;
  if (at == steps.size() || steps[at] != step || !unique) {
    steps.insert(steps.begin() + std::ptrdiff_t(at), step);
    for (auto& [name, column] : columns)
      column.insert(column.begin() + std::ptrdiff_t(at), kNotMeasured);
  } else {
    for (auto& [name, column] : columns) column[at] = kNotMeasured;
  }
  for (const auto& [name, value] : values) {
    std::vector<double>& column = columns[name];
    column.resize(steps.size(), kNotMeasured);
    column[at] = value;
  }
}

MetricValues MetricSeries::values(size_t index) const {
  MetricValues out;
  for (const auto& [name, column] : columns)
    if (!std::isnan(column[index])) out.emplace_back(name, column[index]);
  return out;
}

}  // namespace records
