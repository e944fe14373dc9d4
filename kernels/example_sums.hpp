// SPDX-License-Identifier: Apache-2.0
// Sums of each example's numbers (its loss and parts of the loss) over the examples of a pass.
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// sums[j][c] = sum of values[c][i] over the examples i of slice j, in order, in double.
struct ExampleSums {
  static constexpr Op op = Op::example_sums;
  View sums;    // f64 [slices, columns]
  View values;  // f32 [columns, batch]
  int64_t batch = 0, columns = 0, slices = 1;
};

inline void check(const ExampleSums& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "columns", a.columns, 1);
  need_size(a.op, "slices", a.slices, 1);
  CHECK(a.batch % a.slices == 0, "{}: {} examples cannot be divided into {} slices", name_of(a.op),
        a.batch, a.slices);
  need_view(a.op, "sums", a.sums, DType::f64, {a.slices, a.columns});
  need_view(a.op, "values", a.values, DType::f32, {a.columns, a.batch});
}

inline Cost cost(const ExampleSums& a) {
  return {a.values.count, a.values.bytes() + a.sums.bytes()};
}

}  // namespace kernels
