// SPDX-License-Identifier: Apache-2.0
// Losses over classes, one row per example: cross-entropy of a softmax or of sigmoids, squares, or
// smooth absolute values (smooth L1), with smoothed labels and blends of two labels. The gradient
// replaces the logits.
#pragma once

#include "base/fused.hpp"
#include "kernels/check_views.hpp"

namespace kernels {

enum class ClassLoss { softmax, sigmoid, squared, smooth_l1 };

// True if the logits themselves are compared with the targets. `beta` is the error from which
// smooth_l1 is linear.
constexpr bool compares_values(ClassLoss kind) {
  return kind == ClassLoss::squared || kind == ClassLoss::smooth_l1;
}
// The loss of one value with an error, and its derivative, as in PyTorch.
constexpr double error_loss(ClassLoss kind, double error, double beta) {
  const double size = error < 0 ? -error : error;
  if (kind == ClassLoss::squared) return error * error;
  return size < beta ? error * error / (2 * beta) : size - beta / 2;
}
constexpr double error_slope(ClassLoss kind, double error, double beta) {
  if (kind == ClassLoss::squared) return 2 * error;
  if (error >= beta) return 1;
  return error <= -beta ? -1 : error / beta;
}

// The target of row r is q = shares[r] * t(labels[r]) + (1 - shares[r]) * t(others[r]). Without
// others and shares, q = t(labels[r]). t(l) is 1 - smoothing at class l, and
// smoothing / (columns - 1) elsewhere.
//   softmax: loss[r] = -sum_c q_c log softmax(logits[r])_c, and its gradient is softmax - q.
//   sigmoid: loss[r] = -sum_c (q_c log sigmoid(x_c) + (1 - q_c) log sigmoid(-x_c)), and its
//   gradient is sigmoid - q.
//   squared, smooth_l1: loss[r] = mean over c of error_loss(x_c - q_c).
// ranks[r] counts the classes whose logit is larger than that of labels[r], and the classes before
// labels[r] whose logit is equal. A logit that is NaN counts as larger.
// A row whose label is not known has loss 0, gradient 0 and rank `columns`.
//
// There are many members because each operand and each number of the loss has one.
struct ClassXent {
  static constexpr Op op = Op::class_xent;
  View logits;    // [rows, columns], in and (if gradient) out: scale * gradient
  View labels;    // i32 [rows], each in [0, columns), or -1: not known
  View others{};  // optional i32 [rows], with shares
  View shares{};  // [rows], with others
  View loss;      // [rows], unscaled
  View ranks{};   // optional i32 [rows]
  int64_t rows = 0, columns = 0;
  ClassLoss kind = ClassLoss::softmax;
  float smoothing = 0;
  float beta = 1;  // of smooth_l1
  bool gradient = true;
  float scale = 1;    // factor of the gradient
  View loss_scale{};  // optional [1]: another factor of the gradient
};

// The target of one row: `off` everywhere, plus lift * share at the label, plus lift * (1 - share)
// at the other label.
struct ClassTarget {
  int label = 0, other = 0;
  float share = 1, off = 0, lift = 1;

  constexpr float at(int64_t column) const {
    float q = off;
    if (column == label) q = base::fused(lift, share, q);
    if (column == other) q = base::fused(lift, 1 - share, q);
    return q;
  }
};
constexpr ClassTarget class_target(float smoothing, int64_t columns) {
  const float off = columns > 1 ? smoothing / float(columns - 1) : 0;
  return {.off = off, .lift = 1 - smoothing - off};
}

inline void check(const ClassXent& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "logits", a.logits, DType::f32, {a.rows, a.columns});
  need_view(a.op, "labels", a.labels, DType::i32, {a.rows});
  CHECK(a.others.none() == a.shares.none(), "{}: others and shares come together", name_of(a.op));
  allow_view(a.op, "others", a.others, DType::i32, {a.rows});
  allow_view(a.op, "shares", a.shares, DType::f32, {a.rows});
  need_view(a.op, "loss", a.loss, DType::f32, {a.rows});
  allow_view(a.op, "ranks", a.ranks, DType::i32, {a.rows});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
  CHECK(a.smoothing >= 0 && a.smoothing < 1, "{}: smoothing is {}, must lie in [0, 1)",
        name_of(a.op), a.smoothing);
  CHECK(a.smoothing == 0 || a.columns > 1, "{}: smoothing needs two columns", name_of(a.op));
  CHECK(a.columns <= INT32_MAX, "{}: {} columns exceed 2^31 - 1", name_of(a.op), a.columns);
}

inline Cost cost(const ClassXent& a) {
  const int64_t n = a.rows * a.columns;
  return {(a.gradient ? 6 : 4) * n, 4 * ((a.gradient ? 2 : 1) * n + 3 * a.rows)};
}

}  // namespace kernels
