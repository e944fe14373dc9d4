// SPDX-License-Identifier: Apache-2.0
// CPU implementation of noise.
#include "kernels/add_noise.hpp"

#include "kernels/cpu/parallel.hpp"

namespace kernels {

void run_cpu(const AddNoise& a, Queue& queue) {
  float* y = a.y.f32();
  const float* x = a.x.f32();
  for_ranges(queue, a.y.count, a.y.count, 16, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i)
      y[i] = x[i] + float(double(a.std) * a.stream.normal(uint64_t(a.begin + i)));
  });
}

}  // namespace kernels
