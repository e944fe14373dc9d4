// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of sums over examples.
#include "kernels/example_sums.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const ExampleSums& a) {
  need_size(a.op, "batch", a.batch);
  need_size(a.op, "columns", a.columns, 1);
  need_size(a.op, "slices", a.slices, 1);
  CHECK(a.batch % a.slices == 0, "{}: {} examples cannot be divided into {} slices", name_of(a.op),
        a.batch, a.slices);
  need_view(a.op, "sums", a.sums, DType::f64, {a.slices, a.columns});
  need_view(a.op, "values", a.values, DType::f32, {a.columns, a.batch});
}

Cost cost(const ExampleSums& a) { return {a.values.count, a.values.bytes() + a.sums.bytes()}; }

}  // namespace kernels
