// SPDX-License-Identifier: Apache-2.0
// Multinomial logistic regression (ssl.md 8, low-shot logistic). It is solved exactly, in double.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/fits/least_squares.hpp"

namespace eval {

// Standardises features with mean and population standard deviation of the rows that it was fitted
// to, or divides by 1 if a feature does not vary.
struct LogisticProbe {
  std::vector<double> mean, deviation;  // [features]
  std::vector<double> weights;          // [classes, features + 1], the bias last

  // Returns the class with the highest score, the first one of equal scores; -1 if a score is not
  // finite. `standard` is workspace.
  int64_t predict(const float* x, std::vector<double>& standard) const;
};

// Returns the minimiser of (sum over the rows of the cross-entropy) + l2 / (2 rows) * |weights|^2.
// The biases are not regularised. In the published form, C sum loss + |weights|^2 / 2, C is
// rows / l2. The bits do not depend on `threads`.
LogisticProbe fit_logistic(const LabelledRows& rows, double l2, int threads);

}  // namespace eval
