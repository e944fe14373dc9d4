// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the moving average.
#include "kernels/ema_update.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const EmaUpdate& a) {
  need_view(a.op, "average", a.average, DType::f32, {a.average.count});
  need_view(a.op, "values", a.values, DType::f32, {a.average.count});
  allow_view(a.op, "decided", a.decided, DType::f32, {3});
  CHECK(a.keep >= 0 && a.keep <= 1, "{}: keep is {}, must lie in [0, 1]", name_of(a.op), a.keep);
}

Cost cost(const EmaUpdate& a) { return {3 * a.average.count, 12 * a.average.count}; }

}  // namespace kernels
