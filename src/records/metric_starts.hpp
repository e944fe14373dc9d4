// SPDX-License-Identifier: Apache-2.0
// The attempts of a run by their start rows, and which steps each of them wrote.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "records/metric_rows.hpp"

namespace records {

// Returns the number of the attempt whose start row has these values.
inline int64_t attempt_of_start(const MetricValues& start) {
  for (const auto& [name, value] : start)
    if (name == "attempt" && value >= 1) return int64_t(value);
  return 1;
}

class MetricStarts {
 public:
  struct Attempt {
    int64_t number = 1, step = 0;
    int64_t last = 0;  // last step whose row is this attempt's; less than `step` without any
    MetricValues values;
  };

  explicit MetricStarts(const MetricSeries& starts) {
    for (size_t i = 0; i < starts.steps.size(); ++i) {
      MetricValues values = starts.values(i);
      const int64_t number = attempt_of_start(values);
      attempts_.push_back({number, starts.steps[i], 0, std::move(values)});
    }
    std::stable_sort(attempts_.begin(), attempts_.end(),
                     [](const Attempt& a, const Attempt& b) { return a.number < b.number; });
    int64_t last = std::numeric_limits<int64_t>::max();
    for (size_t i = attempts_.size(); i-- > 0;) {
      attempts_[i].last = last;
      last = std::min(last, attempts_[i].step);
    }
  }

  const std::vector<Attempt>& all() const { return attempts_; }  // by number

 private:
  std::vector<Attempt> attempts_;
};

}  // namespace records
