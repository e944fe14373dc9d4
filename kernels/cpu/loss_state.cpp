// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the updates of losses' states.
#include "kernels/loss_state.hpp"

#include <cstring>

#include "kernels/cpu/parallel.hpp"

namespace kernels {

void run_cpu(const MovingMean& a, Queue& queue) {
  float* mean = a.mean.f32();
  const double *totals = a.totals.f64(), keep = double(a.momentum);
  for_ranges(queue, a.mean.count, a.mean.count, 64, [&](int64_t i, int64_t end) {
    for (; i < end; ++i)
      mean[i] = float(keep * double(mean[i]) + (1 - keep) * (totals[i] / a.count));
  });
}

void run_cpu(const QueueWrite& a, Queue& queue) {
  const int64_t place = int64_t(*a.place.f32());
  CHECK(place >= 0 && place < a.size, "{}: place {} of {}", name_of(a.op), place, a.size);
  for_ranges(queue, a.count, a.rows.count, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r)
      std::memcpy(a.queue.f32() + (place + r) % a.size * a.width, a.rows.f32() + r * a.width,
                  size_t(a.width) * sizeof(float));
  });
  *a.place.f32() = float((place + a.count) % a.size);
}

}  // namespace kernels
