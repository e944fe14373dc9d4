// SPDX-License-Identifier: Apache-2.0
// Normal noise on weights. Every draw is counted, so its bits depend on the element alone.
#pragma once

#include "base/random.hpp"
#include "kernels/dispatch.hpp"

namespace kernels {

// y[i] = x[i] + std * the stream's normal number begin + i. y may be x.
struct AddNoise {
  static constexpr Op op = Op::add_noise;
  View y, x;  // f32 [count]
  base::Stream stream;
  int64_t begin = 0;
  float std = 0;
};

}  // namespace kernels
