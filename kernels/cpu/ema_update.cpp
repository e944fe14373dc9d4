// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the moving average.
#include "kernels/ema_update.hpp"

#include <algorithm>

#include "base/fused.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {

void run_cpu(const EmaUpdate& a, Queue& queue) {
  if (!a.decided.none() && a.decided.f32()[2] == 0) return;
  float* y = a.average.f32();
  const float* x = a.values.f32();
  const float add = 1.0f - a.keep;
  for_ranges(queue, a.average.count, a.average.count, 64, [&](int64_t begin, int64_t end) {
    if (a.keep == 0) {
      std::copy(x + begin, x + end, y + begin);
      return;
    }
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) y[i] = base::fused(add, x[i] - y[i], y[i]);
  });
}

}  // namespace kernels
