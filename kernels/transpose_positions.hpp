// SPDX-License-Identifier: Apache-2.0
// Exchange of positions and channels. Features are flattened in the published order, channels
// first (ssl.md 2, eval_mlp).
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

// y[b][c][p] = x[b][p][c]
struct TransposePositions {
  static constexpr Op op = Op::transpose_positions;
  View y;  // [batch, channels, positions], of x's type
  View x;  // [batch, positions, channels], f32, bf16 or f16
  int64_t batch = 0, positions = 0, channels = 0;
};

}  // namespace kernels
