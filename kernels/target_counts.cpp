// SPDX-License-Identifier: Apache-2.0
// Argument checks and work counts of the counts of known targets.
#include "kernels/target_counts.hpp"

#include "kernels/check_views.hpp"

namespace kernels {

void check(const TargetCounts& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_size(a.op, "slices", a.slices, 1);
  CHECK(a.rows % a.slices == 0, "{}: {} rows cannot be divided into {} slices", name_of(a.op),
        a.rows, a.slices);
  need_view(a.op, "counts", a.counts, DType::f64, {a.slices, a.columns});
  need_view(a.op, "values", a.values, a.values.type == DType::i32 ? DType::i32 : DType::f32,
            {a.rows, a.columns});
}

Cost cost(const TargetCounts& a) { return {a.values.count, a.values.bytes() + a.counts.bytes()}; }

void check(const CountWeights& a) {
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "weights", a.weights, DType::f32, {a.columns});
  need_view(a.op, "counts", a.counts, DType::f64, {a.columns});
  allow_view(a.op, "factor", a.factor, DType::f32, {1});
}

Cost cost(const CountWeights& a) { return {2 * a.columns, a.weights.bytes() + a.counts.bytes()}; }

}  // namespace kernels
