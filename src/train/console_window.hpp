// SPDX-License-Identifier: Apache-2.0
// Medians of the measures of the last steps, for the console (log.console_window).
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

namespace train {

class ConsoleWindow {
 public:
  explicit ConsoleWindow(int64_t steps) : steps_(size_t(steps)) {}

  // Adds the measures of a step, in an order that is always the same.
  void add(const std::vector<double>& measures) {
    last_.push_back(measures);
    if (last_.size() > steps_) last_.pop_front();
  }
  // Returns the median over the last steps in which the measure was finite: for an even number,
  // the mean of the two middle values. A last value that is not finite is returned as it is.
  double median(size_t measure) const {
    const double newest = last_.back()[measure];
    if (!std::isfinite(newest)) return newest;
    std::vector<double> values;
    for (const std::vector<double>& of_step : last_)
      if (std::isfinite(of_step[measure])) values.push_back(of_step[measure]);
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
  }

 private:
  size_t steps_;
  std::deque<std::vector<double>> last_;
};

}  // namespace train
