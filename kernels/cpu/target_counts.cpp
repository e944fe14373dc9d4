// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the counts of known targets.
#include "kernels/target_counts.hpp"

#include <algorithm>

#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

template <class T>
void count_known(const TargetCounts& a, const T* values, Queue& queue) {
  const int64_t rows = a.rows / a.slices;
  for_ranges(queue, a.slices, a.values.count, 1, [&](int64_t j, int64_t end) {
    for (; j < end; ++j) {
      double* counts = a.counts.f64() + j * a.columns;
      std::fill_n(counts, a.columns, 0.0);
      for (int64_t r = j * rows; r < (j + 1) * rows; ++r)
        for (int64_t c = 0; c < a.columns; ++c) counts[c] += values[r * a.columns + c] >= 0 ? 1 : 0;
    }
  });
}

}  // namespace

void run_cpu(const TargetCounts& a, Queue& queue) {
  if (a.values.type == DType::i32) return count_known(a, a.values.i32(), queue);
  count_known(a, a.values.f32(), queue);
}

void run_cpu(const CountWeights& a, Queue&) {
  const float factor = a.factor.none() ? 1 : *a.factor.f32();
  for (int64_t c = 0; c < a.columns; ++c)
    a.weights.f32()[c] = count_weight(a.counts.f64()[c], a.examples, factor);
}

}  // namespace kernels
