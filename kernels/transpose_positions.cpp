// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the exchange of positions and channels.
#include "kernels/transpose_positions.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const TransposePositions& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "positions", a.positions, 1);
  need_size(a.op, "channels", a.channels, 1);
  need_activation(a.op, "x", a.x, {a.batch, a.positions, a.channels});
  need_view(a.op, "y", a.y, a.x.type, {a.batch, a.channels, a.positions});
  CHECK(a.x.none() || a.x.data != a.y.data, "{}: y may not be x", name_of(a.op));
}

Cost cost(const TransposePositions& a) { return {0, 2 * a.x.bytes()}; }

}  // namespace kernels
