// SPDX-License-Identifier: Apache-2.0
// Counts of the examples whose target is known, and the weights that turn sums over these examples
// into means (ssl.md 3.3).
#pragma once

#include "kernels/dispatch.hpp"

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

}  // namespace kernels
