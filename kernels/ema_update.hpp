// SPDX-License-Identifier: Apache-2.0
// A moving average that follows values: y += (1 - keep) (x - y). With keep = 0 the op copies x to y
// bit by bit. That stores a value computed earlier, but only if the step is applied.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct EmaUpdate {
  static constexpr Op op = Op::ema_update;
  View average;    // f32 [count]: y
  View values;     // f32 [count]: x
  View decided{};  // optional f32 [3], see Clip: if the step is not applied, y stays unchanged
  float keep = 0;  // in [0, 1]
};

}  // namespace kernels
