// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the largest absolute value.
#include "kernels/max_abs.hpp"

#include <cmath>

#include "kernels/cpu/parallel.hpp"

namespace kernels {

void run_cpu(const MaxAbs& a, Queue& queue) {
  const float* x = a.x.f32();
  const int64_t n = a.x.count;
  float largest = 0;
#pragma omp parallel for simd schedule(static) reduction(max        \
                                                         : largest) \
    num_threads(queue.threads()) if (n > kSmallWork)
  for (int64_t i = 0; i < n; ++i) {
    const float size = std::fabs(x[i]);
    largest = size > largest ? size : largest;
  }
  *a.largest.f64() = double(largest);
}

}  // namespace kernels
