// SPDX-License-Identifier: Apache-2.0
// Normal noise on weights. Every draw is counted, so its bits depend on the element alone.
#pragma once

#include "base/random.hpp"
#include "kernels/check_views.hpp"

namespace kernels {

// y[i] = x[i] + std * the stream's normal number begin + i. y may be x.
struct AddNoise {
  static constexpr Op op = Op::add_noise;
  View y, x;  // f32 [count]
  base::Stream stream;
  int64_t begin = 0;
  float std = 0;
};

inline void check(const AddNoise& a) {
  need_view(a.op, "y", a.y, DType::f32, {a.y.count});
  need_view(a.op, "x", a.x, DType::f32, {a.y.count});
  need_size(a.op, "begin", a.begin);
}

inline Cost cost(const AddNoise& a) { return {2 * a.y.count, 8 * a.y.count}; }

}  // namespace kernels
