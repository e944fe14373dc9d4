// SPDX-License-Identifier: Apache-2.0
// The two forms of a metrics row: a line of metrics.jsonl, and an element of columns of equal
// length (metrics.h5).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace records {

using MetricValues = std::vector<std::pair<std::string, double>>;

struct MetricRow {
  std::string group;  // as in metrics.h5: "/train", "/eval/NAME", "/start"
  int64_t step = 0;
  MetricValues values;
};

inline const char* const kTrainRows = "/train";
inline const char* const kStartRows = "/start";
std::string eval_rows(const std::string& evaluator);

std::string line_of(const MetricRow& row);                        // one JSON object and "\n"
std::optional<MetricRow> metric_row_of(const std::string& line);  // nothing: not a row
// Adds the attempt that wrote the line, for metrics.abandoned.jsonl.
std::string line_with_attempt(const std::string& line, int64_t attempt);

// All rows of one group. A value that was not measured is NaN.
struct MetricSeries {
  std::vector<int64_t> steps;
  std::map<std::string, std::vector<double>> columns;
  // `unique`: a step that is measured again replaces the earlier row, and steps stay in ascending
  // order.
  void add(int64_t step, const MetricValues& values, bool unique);
  MetricValues values(size_t index) const;  // without metrics that were not measured
};
using MetricGroups = std::map<std::string, MetricSeries>;

}  // namespace records
