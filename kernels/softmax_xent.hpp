// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy over the vocabulary with label smoothing (cappa.md 3). The gradient
// replaces the logits.
#pragma once

#include "kernels/dispatch.hpp"

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

}  // namespace kernels
