// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the updates of losses' states.
#include "kernels/loss_state.hpp"

#include "base/fused.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {

void run_cpu(const MovingMean& a, Queue& queue) {
  float* mean = a.mean.f32();
  const double *totals = a.totals.f64(), keep = double(a.momentum);
  for_ranges(queue, a.mean.count, a.mean.count, 64, [&](int64_t i, int64_t end) {
    for (; i < end; ++i)
      mean[i] = float(base::fused(keep, double(mean[i]), (1 - keep) * (totals[i] / a.count)));
  });
}

void run_cpu(const QueuePlaces& a, Queue&) {
  const int64_t place = int64_t(*a.place.f32());
  CHECK(place >= 0 && place < a.size, "{}: place {} of {}", name_of(a.op), place, a.size);
  for (int64_t i = 0; i < a.count; ++i) a.index.i32()[i] = int32_t((place + i) % a.size);
  *a.place.f32() = float((place + a.count) % a.size);
}

}  // namespace kernels
