// SPDX-License-Identifier: Apache-2.0
// Mean over the tokens of each example, and its gradient: global average pooling.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct TokenMeanForward {  // y[b] = mean over the rows of x[b], summed in f32 in order
  static constexpr Op op = Op::token_mean_forward;
  View y;  // [batch, width]
  View x;  // f32, bf16 or f16 [batch, rows, width]
  int64_t batch = 0, rows = 0, width = 0;
};

struct TokenMeanBackward {  // dx[b][r] = dy[b] / rows
  static constexpr Op op = Op::token_mean_backward;
  View dx;  // [batch, rows, width]
  View dy;  // [batch, width]
  int64_t batch = 0, rows = 0, width = 0;
};

}  // namespace kernels
