// SPDX-License-Identifier: Apache-2.0
// A moving average that follows values: y += (1 - keep) (x - y). With keep = 0 the op copies x to y
// bit by bit. That stores a value computed earlier, but only if the step is applied.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

struct EmaUpdate {
  static constexpr Op op = Op::ema_update;
  View average;    // f32 [count]: y
  View values;     // f32 [count]: x
  View decided{};  // optional f32 [3], see Clip: if the step is not applied, y stays unchanged
  float keep = 0;  // in [0, 1]
};

inline void check(const EmaUpdate& a) {
  need_view(a.op, "average", a.average, DType::f32, {a.average.count});
  need_view(a.op, "values", a.values, DType::f32, {a.average.count});
  allow_view(a.op, "decided", a.decided, DType::f32, {3});
  CHECK(a.keep >= 0 && a.keep <= 1, "{}: keep is {}, must lie in [0, 1]", name_of(a.op), a.keep);
}

inline Cost cost(const EmaUpdate& a) { return {3 * a.average.count, 12 * a.average.count}; }

}  // namespace kernels
