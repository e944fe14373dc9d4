// SPDX-License-Identifier: Apache-2.0
// Counts of the examples whose target is known, and the weights that turn sums over these examples
// into means (ssl.md 3.3).
#pragma once

#include "kernels/check_views.hpp"

namespace kernels {

// counts[j, c] = number of rows r of slice j whose values[r, c] is at least 0.
struct TargetCounts {
  static constexpr Op op = Op::target_counts;
  View counts;  // f64 [slices, columns]
  View values;  // targets f32 [rows, columns], or labels i32 [rows, columns]
  int64_t rows = 0, columns = 0, slices = 1;
};

// weights[c] = examples / max(counts[c], 1), times *factor if there is one. With them, a sum over
// rows that is divided by `examples` becomes a sum that is divided by the rows that are known.
struct CountWeights {
  static constexpr Op op = Op::count_weights;
  View weights;   // [columns]
  View counts;    // f64 [columns]
  View factor{};  // optional [1]
  int64_t columns = 0;
  double examples = 1;
};

constexpr float count_weight(double count, double examples, float factor) {
  return float(examples / (count > 1 ? count : 1)) * factor;
}

inline void check(const TargetCounts& a) {
  need_size(a.op, "rows", a.rows);
  need_size(a.op, "columns", a.columns, 1);
  need_size(a.op, "slices", a.slices, 1);
  CHECK(a.rows % a.slices == 0, "{}: {} rows cannot be divided into {} slices", name_of(a.op),
        a.rows, a.slices);
  need_view(a.op, "counts", a.counts, DType::f64, {a.slices, a.columns});
  need_view(a.op, "values", a.values, a.values.type == DType::i32 ? DType::i32 : DType::f32,
            {a.rows, a.columns});
}

inline Cost cost(const TargetCounts& a) {
  return {a.values.count, a.values.bytes() + a.counts.bytes()};
}

inline void check(const CountWeights& a) {
  need_size(a.op, "columns", a.columns, 1);
  need_view(a.op, "weights", a.weights, DType::f32, {a.columns});
  need_view(a.op, "counts", a.counts, DType::f64, {a.columns});
  allow_view(a.op, "factor", a.factor, DType::f32, {1});
}

inline Cost cost(const CountWeights& a) {
  return {2 * a.columns, a.weights.bytes() + a.counts.bytes()};
}

}  // namespace kernels
