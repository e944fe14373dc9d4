// SPDX-License-Identifier: Apache-2.0
// Batch normalisation over rows, per column (ssl.md 1.4). Rows are the pixels of images, columns
// their channels. A group of rows shares mean and variance:
//   y = (x - mean) * (rstd * scale) + bias, rstd = 1 / sqrt(variance + eps)
// with the biased variance. Sums are f64, so that E[x^2] - mean^2 keeps the digits of f32.
//
// A pass computes the sums of parts of a group, adds those of other slices and ranks, and forms the
// statistics. Rows alone fix the order of a part's sum. All ops can fuse a ReLU. No op stores what
// it can compute from x again: backward finds the ReLU's zeros from x, or from the output y.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// sums[p] = the sums over the rows of part p of x and of x^2.
struct BatchNormSums {
  static constexpr Op op = Op::batch_norm_sums;
  View sums;  // f64 [parts, 2, columns]
  View x;     // [parts, rows, columns], f32, bf16 or f16
  int64_t parts = 1, rows = 0, columns = 0;
};

// Forms mean and rstd from the sums of whole groups, or from running values if `sums` is none.
struct BatchNormStatistics {
  static constexpr Op op = Op::batch_norm_statistics;
  View mean, rstd;          // f32 [groups, columns]
  View moments{};           // optional f64 [parts, 2, columns]: sums over the groups / parts
                            // groups of a part of means and of unbiased variances
  View sums{};              // f64 [groups, 2, columns]
  View running_mean{};      // f32 [columns], without `sums`; then there is one group
  View running_variance{};  // f32 [columns]
  int64_t groups = 1, parts = 1, columns = 0;
  int64_t count = 0;  // values per group and column, at least 2
  float eps = 1e-5f;
};

// mean = decay * mean + weight * (sum of means), likewise the variance; batches += 1.
struct BatchNormRunning {
  static constexpr Op op = Op::batch_norm_running;
  View mean, variance;  // f32 [columns]
  View batches{};       // optional f32 [1]
  View moments;         // f64 [2, columns]: sums of means and of unbiased variances
  int64_t columns = 0;
  double decay = 0.9, weight = 0.1;
};

// The statistics of the groups of x that normalise it, with scale and bias.
struct BatchNormValues {
  View mean{}, rstd{};   // f32 [groups, columns]
  View scale{}, bias{};  // optional f32 [columns]: 1 and 0 without them
};

// y = norm(x), + shortcut or + shortcut_norm(shortcut) if given, then ReLU if `relu`.
struct BatchNormForward {
  static constexpr Op op = Op::batch_norm_forward;
  View y;  // [groups, rows, columns], f32, bf16 or f16
  View x;  // [groups, rows, columns], of y's type
  BatchNormValues norm;
  View shortcut{};                  // optional [groups, rows, columns], of y's type
  BatchNormValues shortcut_norm{};  // without mean: the shortcut is added as it is
  int64_t groups = 1, rows = 0, columns = 0;
  bool relu = false;
};

// With g = the gradient of the norm's result, sums[p] = the sums over the rows of part p of g and
// of g * (x - mean) * rstd. g = dy (+ add), or 0 where the ReLU was 0: where `y` is 0, or, without
// y, where norm(x) is.
struct BatchNormBackwardSums {
  static constexpr Op op = Op::batch_norm_backward_sums;
  View sums;   // f64 [parts, 2, columns]
  View g{};    // optional [parts, rows, columns]: rounded to its type, then summed; may be dy
  View dy;     // [parts, rows, columns], f32, bf16 or f16
  View add{};  // optional, like dy: a second gradient of the output
  View y{};    // optional, like dy: the output, after ReLU
  View x;      // [parts, rows, columns], of dy's type
  BatchNormValues norm;
  int64_t parts = 1, groups = 1, rows = 0, columns = 0;  // parts / groups parts share statistics
  bool relu = false;
};

// dx = scale * rstd * (g - mean of g - z * mean of g z), with z = (x - mean) * rstd and the means
// over the group; or scale * rstd * g if `sums` is none, where the statistics are constants.
struct BatchNormBackward {
  static constexpr Op op = Op::batch_norm_backward;
  View dx;  // [groups, rows, columns], f32, bf16 or f16; may be dy
  View dy;  // [groups, rows, columns], of dx's type: g if not `relu`
  View x;   // [groups, rows, columns], of dx's type
  BatchNormValues norm;
  View sums{};  // f64 [groups, 2, columns]: of whole groups, from BatchNormBackwardSums
  int64_t groups = 1, rows = 0, columns = 0;
  int64_t count = 0;  // values per group and column, also those of other slices and ranks
  bool relu = false;  // g = 0 where norm(x) is not above 0
};

// dbias = (+=) the first sums of all parts, dscale = (+=) the second ones.
struct BatchNormGradients {
  static constexpr Op op = Op::batch_norm_gradients;
  View dscale{}, dbias{};  // each optional f32 [columns]
  View sums;               // f64 [parts, 2, columns]
  int64_t parts = 1, columns = 0;
  Write scale_write = Write::overwrite, bias_write = Write::overwrite;
};

size_t cuda_scratch(const BatchNormSums&);
size_t cuda_scratch(const BatchNormBackwardSums&);

}  // namespace kernels
