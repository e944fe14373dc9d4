// SPDX-License-Identifier: Apache-2.0
// Linear support vector machines, one class against all others (ssl.md 8). They are solved exactly,
// in double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace eval {

// Writes rows of a fit: x / (|x| + 1e-5), and the constant feature 1 for the bias. to: [rows,
// features + 1].
void write_svm_rows(const float* x, int64_t rows, int64_t features, double* to);
// Returns such rows.
std::vector<double> svm_rows(const float* x, int64_t rows, int64_t features);

// Returns weights and bias [width]: the minimiser of
//   |w|^2 / 2 + sum over the rows of c max(0, 1 - t w.x)^2
// Rows that show the class have t = 1 and c = 2 cost, the others t = -1 and c = cost. The
// regularisation includes the bias. x has rows of `width` numbers; the fit reads those in `rows`.
// `shows` has an element for each row of x.
std::vector<double> fit_svm(std::span<const double> x, int64_t width,
                            const std::vector<int64_t>& rows, const std::vector<char>& shows,
                            double cost);

// Returns the fold, in [0, folds), of each row, as in scikit-learn's StratifiedKFold without
// shuffling: each fold gets nearly equal, contiguous parts of both classes.
std::vector<int64_t> stratified_folds(const std::vector<char>& shows, int64_t folds);

// Returns the mean over 3 stratified folds of the average precision on the fold of a fit to the
// others. The average precision takes Precision::of_each_recall, unlike on test images. It is 0 for
// a fold that does not show the class.
double cross_validated(std::span<const double> x, int64_t width, const std::vector<char>& shows,
                       double cost);

}  // namespace eval
