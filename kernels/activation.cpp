// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of activations.
#include "kernels/activation.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const ActivationForward& a) {
  need_activation(a.op, "x", a.x, {a.x.count});
  need_view(a.op, "y", a.y, a.x.type, {a.x.count});
}

Cost cost(const ActivationForward& a) {
  return {(a.kind == Activation::relu ? 1 : 10) * a.x.count, 2 * a.x.bytes()};
}

void check(const ActivationBackward& a) {
  need_activation(a.op, "x", a.x, {a.x.count});
  need_view(a.op, "dy", a.dy, a.x.type, {a.x.count});
  need_view(a.op, "dx", a.dx, a.x.type, {a.x.count});
}

Cost cost(const ActivationBackward& a) {
  return {(a.kind == Activation::relu ? 1 : 15) * a.x.count, 3 * a.x.bytes()};
}

}  // namespace kernels
