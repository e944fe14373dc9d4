// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of GELU.
#include "kernels/gelu.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const GeluForward& a) {
  need_view(a.op, "y", a.y, a.x.type, {a.x.count});
  need_activation(a.op, "x", a.x, {a.x.count});
}

// FLOPs are counted as in published tables, not as executed: a few operations and an exponential
// for each element.
Cost cost(const GeluForward& a) { return {8 * a.x.count, 2 * a.x.bytes()}; }

void check(const GeluBackward& a) {
  need_view(a.op, "dx", a.dx, a.x.type, {a.x.count});
  need_view(a.op, "dy", a.dy, a.x.type, {a.x.count});
  need_activation(a.op, "x", a.x, {a.x.count});
}

Cost cost(const GeluBackward& a) { return {16 * a.x.count, 3 * a.x.bytes()}; }

}  // namespace kernels
