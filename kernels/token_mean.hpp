// SPDX-License-Identifier: Apache-2.0
// Mean over the tokens of each example, and its gradient: global average pooling.
#pragma once

#include "kernels/check_views.hpp"

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

template <class Args>
void check_token_mean(const Args& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "rows", a.rows, 1);
  need_size(a.op, "width", a.width, 1);
}

inline void check(const TokenMeanForward& a) {
  check_token_mean(a);
  need_view(a.op, "y", a.y, DType::f32, {a.batch, a.width});
  need_activation(a.op, "x", a.x, {a.batch, a.rows, a.width});
}
inline Cost cost(const TokenMeanForward& a) { return {a.x.count, a.x.bytes() + a.y.bytes()}; }

inline void check(const TokenMeanBackward& a) {
  check_token_mean(a);
  need_view(a.op, "dx", a.dx, DType::f32, {a.batch, a.rows, a.width});
  need_view(a.op, "dy", a.dy, DType::f32, {a.batch, a.width});
}
inline Cost cost(const TokenMeanBackward& a) { return {a.dy.count, a.dx.bytes() + a.dy.bytes()}; }

}  // namespace kernels
