// SPDX-License-Identifier: Apache-2.0
#include "kernels/gelu.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const GeluForward& a) {
  need_view(a.op, "y", a.y, a.x.type, {a.x.count});
  need_activation(a.op, "x", a.x, {a.x.count});
}

// A handful of operations per element and an exponential: counted as published tables do, not as
// executed.
Cost cost(const GeluForward& a) { return {8 * a.x.count, 2 * a.x.bytes()}; }

void check(const GeluBackward& a) {
  need_view(a.op, "dx", a.dx, a.x.type, {a.x.count});
  need_view(a.op, "dy", a.dy, a.x.type, {a.x.count});
  need_activation(a.op, "x", a.x, {a.x.count});
}

Cost cost(const GeluBackward& a) { return {16 * a.x.count, 3 * a.x.bytes()}; }

}  // namespace kernels
