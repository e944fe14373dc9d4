// SPDX-License-Identifier: Apache-2.0
// Exchange of positions and channels. Features are flattened in the published order, channels
// first (ssl.md 2, eval_mlp).
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// y[b][c][p] = x[b][p][c]
struct TransposePositions {
  static constexpr Op op = Op::transpose_positions;
  View y;  // [batch, channels, positions], of x's type
  View x;  // [batch, positions, channels], f32, bf16 or f16
  int64_t batch = 0, positions = 0, channels = 0;
};

inline void check(const TransposePositions& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "positions", a.positions, 1);
  need_size(a.op, "channels", a.channels, 1);
  need_activation(a.op, "x", a.x, {a.batch, a.positions, a.channels});
  need_view(a.op, "y", a.y, a.x.type, {a.batch, a.channels, a.positions});
  CHECK(a.x.none() || a.x.data != a.y.data, "{}: y may not be x", name_of(a.op));
}

inline Cost cost(const TransposePositions& a) { return {0, 2 * a.x.bytes()}; }

}  // namespace kernels
