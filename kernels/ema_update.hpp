// SPDX-License-Identifier: Apache-2.0
// A moving average that follows values: y += (1 - keep) (x - y). With keep = 0, y becomes x to the
// bit: then the op takes over a value that was computed before the step's decision.
#pragma once

#include "kernels/dispatch.hpp"

namespace kernels {

struct EmaUpdate {
  static constexpr Op op = Op::ema_update;
  View average;    // f32 [count]: y
  View values;     // f32 [count]: x
  View decided{};  // optional f32 [3], see Clip: where the step is not applied, y stays
  float keep = 0;  // in [0, 1]
};

}  // namespace kernels
