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

#include "kernels/check_views.hpp"

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

inline void check_norm_values(Op op, const BatchNormValues& v, int64_t groups, int64_t columns) {
  need_view(op, "mean", v.mean, DType::f32, {groups, columns});
  need_view(op, "rstd", v.rstd, DType::f32, {groups, columns});
  allow_view(op, "scale", v.scale, DType::f32, {columns});
  allow_view(op, "bias", v.bias, DType::f32, {columns});
}

// Refuses an optional view of another type or size than `like`.
inline void allow_norm_view(Op op, const char* name, const View& view, const View& like) {
  CHECK(view.none() || (view.type == like.type && view.count == like.count),
        "{}: {} has {} elements of {}, not {} of {}", name_of(op), name, view.count,
        device::name_of(view.type), like.count, device::name_of(like.type));
}

inline void check_norm_sizes(Op op, int64_t groups, int64_t rows, int64_t columns) {
  need_size(op, "groups", groups, 1);
  need_size(op, "rows", rows);
  need_size(op, "columns", columns, 1);
}

inline void check(const BatchNormSums& a) {
  check_norm_sizes(a.op, a.parts, a.rows, a.columns);
  need_view(a.op, "sums", a.sums, DType::f64, {a.parts, 2, a.columns});
  need_activation(a.op, "x", a.x, {a.parts, a.rows, a.columns});
}
inline Cost cost(const BatchNormSums& a) { return {3 * a.x.count, a.x.bytes() + a.sums.bytes()}; }

inline void check(const BatchNormStatistics& a) {
  check_norm_sizes(a.op, a.groups, 0, a.columns);
  need_view(a.op, "mean", a.mean, DType::f32, {a.groups, a.columns});
  need_view(a.op, "rstd", a.rstd, DType::f32, {a.groups, a.columns});
  CHECK(a.eps >= 0, "{}: eps is {}", name_of(a.op), a.eps);
  if (a.sums.none()) {
    CHECK(a.groups == 1 && a.moments.none(), "{}: running values need exactly one group",
          name_of(a.op));
    need_view(a.op, "running_mean", a.running_mean, DType::f32, {a.columns});
    return need_view(a.op, "running_variance", a.running_variance, DType::f32, {a.columns});
  }
  need_view(a.op, "sums", a.sums, DType::f64, {a.groups, 2, a.columns});
  CHECK(a.count >= 2, "{}: a variance of {} values", name_of(a.op), a.count);
  CHECK(a.parts > 0 && a.groups % a.parts == 0, "{}: {} groups in {} parts", name_of(a.op),
        a.groups, a.parts);
  allow_view(a.op, "moments", a.moments, DType::f64, {a.parts, 2, a.columns});
}
inline Cost cost(const BatchNormStatistics& a) {
  return {8 * a.mean.count, a.mean.bytes() + a.rstd.bytes() + a.moments.bytes() + a.sums.bytes() +
                                a.running_mean.bytes() + a.running_variance.bytes()};
}

inline void check(const BatchNormRunning& a) {
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "mean", a.mean, DType::f32, {a.columns});
  need_view(a.op, "variance", a.variance, DType::f32, {a.columns});
  allow_view(a.op, "batches", a.batches, DType::f32, {1});
  need_view(a.op, "moments", a.moments, DType::f64, {2, a.columns});
}
inline Cost cost(const BatchNormRunning& a) {
  return {6 * a.columns, 2 * (a.mean.bytes() + a.variance.bytes()) + a.moments.bytes()};
}

inline void check(const BatchNormForward& a) {
  check_norm_sizes(a.op, a.groups, a.rows, a.columns);
  need_activation(a.op, "y", a.y, {a.groups, a.rows, a.columns});
  need_view(a.op, "x", a.x, a.y.type, {a.groups, a.rows, a.columns});
  check_norm_values(a.op, a.norm, a.groups, a.columns);
  allow_norm_view(a.op, "shortcut", a.shortcut, a.y);
  if (a.shortcut_norm.mean.none()) return;
  CHECK(!a.shortcut.none(), "{}: values of a shortcut, but no shortcut", name_of(a.op));
  check_norm_values(a.op, a.shortcut_norm, a.groups, a.columns);
}
inline Cost cost(const BatchNormForward& a) {
  return {3 * a.y.count, a.y.bytes() + a.x.bytes() + a.shortcut.bytes()};
}

inline void check(const BatchNormBackwardSums& a) {
  check_norm_sizes(a.op, a.groups, a.rows, a.columns);
  CHECK(a.parts > 0 && a.parts % a.groups == 0, "{}: {} parts of {} groups", name_of(a.op), a.parts,
        a.groups);
  need_view(a.op, "sums", a.sums, DType::f64, {a.parts, 2, a.columns});
  need_activation(a.op, "dy", a.dy, {a.parts, a.rows, a.columns});
  need_view(a.op, "x", a.x, a.dy.type, {a.parts, a.rows, a.columns});
  allow_norm_view(a.op, "g", a.g, a.dy);
  allow_norm_view(a.op, "add", a.add, a.dy);
  allow_norm_view(a.op, "y", a.y, a.dy);
  CHECK(a.relu || a.y.none(), "{}: y is used only with a ReLU", name_of(a.op));
  check_norm_values(a.op, a.norm, a.groups, a.columns);
}
inline Cost cost(const BatchNormBackwardSums& a) {
  return {6 * a.x.count,
          a.sums.bytes() + a.g.bytes() + a.dy.bytes() + a.add.bytes() + a.y.bytes() + a.x.bytes()};
}

inline void check(const BatchNormBackward& a) {
  check_norm_sizes(a.op, a.groups, a.rows, a.columns);
  need_activation(a.op, "dx", a.dx, {a.groups, a.rows, a.columns});
  need_view(a.op, "dy", a.dy, a.dx.type, {a.groups, a.rows, a.columns});
  need_view(a.op, "x", a.x, a.dx.type, {a.groups, a.rows, a.columns});
  check_norm_values(a.op, a.norm, a.groups, a.columns);
  allow_view(a.op, "sums", a.sums, DType::f64, {a.groups, 2, a.columns});
  CHECK(a.sums.none() || a.count > 0, "{}: means of {} values", name_of(a.op), a.count);
}
inline Cost cost(const BatchNormBackward& a) {
  return {6 * a.x.count, a.dx.bytes() + a.dy.bytes() + a.x.bytes()};
}

inline void check(const BatchNormGradients& a) {
  need_size(a.op, "parts", a.parts, 1);
  need_size(a.op, "columns", a.columns, 1);
  allow_view(a.op, "dscale", a.dscale, DType::f32, {a.columns});
  allow_view(a.op, "dbias", a.dbias, DType::f32, {a.columns});
  need_view(a.op, "sums", a.sums, DType::f64, {a.parts, 2, a.columns});
}
inline Cost cost(const BatchNormGradients& a) {
  return {2 * a.parts * a.columns, a.sums.bytes() + a.dscale.bytes() + a.dbias.bytes()};
}

}  // namespace kernels
