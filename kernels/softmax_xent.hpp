// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy over the vocabulary with label smoothing (cappa.md 3). The gradient
// replaces the logits.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// loss[r] = -sum_v q_v log_softmax(logits[r])_v. q is 1 - smoothing at the label, and
// smoothing / (columns - 1) elsewhere, or everywhere if the label is outside [0, columns). If
// `gradient`, logits become row_scale[r] * (softmax * sum(q) - q). With `rounded`, this gradient is
// written there instead, and the logits are undefined.
struct SoftmaxXent {
  static constexpr Op op = Op::softmax_xent;
  View logits;       // [rows, columns], in and (if gradient) out
  View labels;       // i32 [rows]
  View row_scale{};  // [rows], needed if gradient
  View loss;         // [rows], unscaled
  int64_t rows = 0, columns = 0;
  float smoothing = 0;
  bool gradient = true;
  View loss_scale{};  // optional [1]: another factor of the gradient
  View rounded{};     // optional [rows, columns], bf16 or f16; only if gradient
};

inline void check(const SoftmaxXent& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "logits", a.logits, DType::f32, {a.rows, a.columns});
  need_view(a.op, "labels", a.labels, DType::i32, {a.rows});
  if (a.gradient) need_view(a.op, "row_scale", a.row_scale, DType::f32, {a.rows});
  allow_view(a.op, "loss_scale", a.loss_scale, DType::f32, {1});
  need_view(a.op, "loss", a.loss, DType::f32, {a.rows});
  allow_view(a.op, "rounded", a.rounded, a.rounded.type == DType::f16 ? DType::f16 : DType::bf16,
             {a.rows, a.columns});
  CHECK(a.rounded.none() || a.gradient, "{}: rounded goes with gradient only", name_of(a.op));
  CHECK(a.smoothing >= 0 && a.smoothing < 1, "{}: smoothing is {}, must lie in [0, 1)",
        name_of(a.op), a.smoothing);
  CHECK(a.smoothing == 0 || a.columns > 1, "{}: smoothing needs two columns", name_of(a.op));
}

inline Cost cost(const SoftmaxXent& a) {
  int64_t n = a.rows * a.columns;
  const int64_t written = !a.gradient ? 0 : a.rounded.none() ? 4 * n : a.rounded.bytes();
  return {(a.gradient ? 6 : 4) * n, written + 4 * (n + 3 * a.rows)};
}

}  // namespace kernels
