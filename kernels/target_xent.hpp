// SPDX-License-Identifier: Apache-2.0
// Cross-entropy whose targets are a matrix with a number for each class (ssl.md 3.3): classes that
// an image shows, does not show or that are not known, or a distribution over the classes. The
// gradient replaces the logits.
#pragma once

#include "kernels/check_views.hpp"
#include "kernels/class_xent.hpp"

namespace kernels {

// With t = targets[r] and w = weights (1 if none), sums run over the classes whose t_c is at least
// 0; the others are not known.
//   softmax: loss[r] = -sum_c w_c t_c log softmax(logits[r])_c, over all classes; its gradient is
//   (sum_c w_c t_c) softmax - w t.
//   sigmoid: loss[r] = -sum_c w_c (t_c log sigmoid(x_c) + (1 - t_c) log sigmoid(-x_c)); its
//   gradient is w_c (sigmoid - t_c), and 0 where t_c is not known.
//   squared, smooth_l1: loss[r] = mean over c of w_c error_loss(x_c - t_c). Targets are any
//   numbers, and all are known.
// hits[r] is 1 if the known class with the largest logit is one with the largest target, and 0 if
// not. Among equal logits the first one counts.
struct TargetXent {
  static constexpr Op op = Op::target_xent;
  View logits;     // [rows, columns], in and (if gradient) out: scale * gradient
  View targets;    // [rows, columns]; below 0: not known
  View weights{};  // optional [columns]
  View loss;       // [rows], unscaled
  View hits{};     // optional f32 [rows]
  int64_t rows = 0, columns = 0;
  ClassLoss kind = ClassLoss::sigmoid;
  float beta = 1;  // of smooth_l1
  bool gradient = true;
  float scale = 1;    // factor of the gradient
  View loss_scale{};  // optional [1]: another factor of the gradient
};

inline void check(const TargetXent& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "logits", a.logits, DType::f32, {a.rows, a.columns});
  need_view(a.op, "targets", a.targets, DType::f32, {a.rows, a.columns});
  allow_view(a.op, "weights", a.weights, DType::f32, {a.columns});
  need_view(a.op, "loss", a.loss, DType::f32, {a.rows});
  allow_view(a.op, "hits", a.hits, DType::f32, {a.rows});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
}

inline Cost cost(const TargetXent& a) {
  const int64_t n = a.rows * a.columns;
  return {(a.gradient ? 6 : 4) * n, 4 * ((a.gradient ? 3 : 2) * n + a.columns + a.rows)};
}

}  // namespace kernels
