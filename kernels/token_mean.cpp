// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the mean over tokens.
#include "kernels/token_mean.hpp"

#include "kernels/check_views.hpp"

namespace kernels {
namespace {

template <class Args>
void check_sizes(const Args& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "rows", a.rows, 1);
  need_size(a.op, "width", a.width, 1);
}

}  // namespace

void check(const TokenMeanForward& a) {
  check_sizes(a);
  need_view(a.op, "y", a.y, DType::f32, {a.batch, a.width});
  need_activation(a.op, "x", a.x, {a.batch, a.rows, a.width});
}
Cost cost(const TokenMeanForward& a) { return {a.x.count, a.x.bytes() + a.y.bytes()}; }

void check(const TokenMeanBackward& a) {
  check_sizes(a);
  need_view(a.op, "dx", a.dx, DType::f32, {a.batch, a.rows, a.width});
  need_view(a.op, "dy", a.dy, DType::f32, {a.batch, a.width});
}
Cost cost(const TokenMeanBackward& a) { return {a.dy.count, a.dx.bytes() + a.dy.bytes()}; }

}  // namespace kernels
