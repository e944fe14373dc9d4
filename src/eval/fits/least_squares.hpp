// SPDX-License-Identifier: Apache-2.0
// Linear probes by regularised least squares on a few rows of each class, like in the published
// few-shot evaluator (cappa.md 9.5). They are solved exactly, in float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eval {

// Labelled rows of features.
struct LabelledRows {
  const float* x = nullptr;  // [labels.size(), features]
  int64_t features = 0;
  std::vector<int32_t> labels;  // in [0, classes)
  int64_t classes = 0;
};

// Returns the rows of each class in the random order of NumPy: default_rng(seed).permutation of the
// class's rows, for one class after the other.
std::vector<std::vector<int64_t>> permuted_rows(const LabelledRows& data, uint64_t seed);

// Returns the first `shots` rows of each class, or all of a smaller class, by class.
std::vector<int64_t> first_of_each(const std::vector<std::vector<int64_t>>& rows, int64_t shots);

// A linear function of standardised features. It standardises a feature with the mean and the
// population standard deviation + 1e-5 of the rows that it was fitted to, and appends the constant
// feature 100.
struct LinearProbe {
  std::vector<double> mean, deviation;  // [features]
  std::vector<double> weights;          // [features + 1, classes]; NaN if no solution was found

  int64_t features() const { return int64_t(mean.size()); }
  int64_t classes() const { return int64_t(weights.size()) / (features() + 1); }
  // Computes the scores [classes] of one row of features.
  void score(const float* x, std::vector<double>& scores) const;
  // Returns the class with the highest score, the first one of equal scores; -1 if a score is not
  // finite. `scores` is workspace.
  int64_t predict(const float* x, std::vector<double>& scores) const;
};

// Fits a probe for each l2 > 0 to the given rows: W = (X'X + l2 I)^-1 X'Y, with Y = 1 at the own
// class and -1 elsewhere. With fewer rows than features + 1, the equal X'(XX' + l2 I)^-1 Y is
// computed.
std::vector<LinearProbe> fit_probes(const LabelledRows& data, const std::vector<int64_t>& rows,
                                    const std::vector<double>& l2);

// Returns the index of the l2 whose probe is right most often on rows held out from the fit; among
// equally good ones the first. A fifth of each class's chosen rows, at least one, is held out: the
// last ones of the first `shots`. Classes of one row stay in the fit. Without held-out rows the
// first l2 is returned.
size_t choose_l2(const LabelledRows& data, const std::vector<std::vector<int64_t>>& rows,
                 int64_t shots, const std::vector<double>& l2);

}  // namespace eval
