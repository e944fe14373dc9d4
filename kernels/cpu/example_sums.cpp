// SPDX-License-Identifier: Apache-2.0
// CPU implementation of sums over examples. A pass has so few examples that one thread adds them.
#include "kernels/example_sums.hpp"

namespace kernels {

void run_cpu(const ExampleSums& a, Queue&) {
  const int64_t examples = a.batch / a.slices;
  for (int64_t j = 0; j < a.slices; ++j)
    for (int64_t c = 0; c < a.columns; ++c) {
      const float* values = a.values.f32() + c * a.batch + j * examples;
      double sum = 0;
      for (int64_t i = 0; i < examples; ++i) sum += double(values[i]);
      a.sums.f64()[j * a.columns + c] = sum;
    }
}

}  // namespace kernels
