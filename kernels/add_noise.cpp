// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of noise.
#include "kernels/add_noise.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const AddNoise& a) {
  need_view(a.op, "y", a.y, DType::f32, {a.y.count});
  need_view(a.op, "x", a.x, DType::f32, {a.y.count});
  need_size(a.op, "begin", a.begin);
}

Cost cost(const AddNoise& a) { return {2 * a.y.count, 8 * a.y.count}; }

}  // namespace kernels
