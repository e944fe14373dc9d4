// SPDX-License-Identifier: Apache-2.0
// Division of work among threads: contiguous ranges, one per thread, and no parallel region for
// small problems. The result of an item may not depend on where its range begins, so bits never
// depend on the number of threads.
#pragma once

#include <omp.h>

#include <algorithm>

#include "device/queue.hpp"

namespace kernels {

// If fewer elements are touched, waking threads costs more than they save.
constexpr int64_t kSmallWork = 16384;

// Returns the number of all threads, or one. OpenMP would end the threads that a smaller team
// leaves over, and start new ones for the next op.
inline int threads_for(const device::Queue& queue, int64_t work, int64_t items) {
  return work < kSmallWork || items <= 1 ? 1 : queue.threads();
}

// Calls f(begin, end) for ranges that cover [0, items). `work` is the number of elements touched in
// all. Ranges begin at multiples of `unit`, so that threads share no cache lines. f may not throw.
template <class F>
void for_ranges(const device::Queue& queue, int64_t items, int64_t work, int64_t unit, const F& f) {
  int64_t units = (items + unit - 1) / unit;
  int threads = threads_for(queue, work, units);
  if (threads == 1) {
    if (items > 0) f(int64_t{0}, items);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int t = 0; t < threads; ++t) {
    int64_t begin = units * t / threads * unit,
            end = std::min(items, units * (t + 1) / threads * unit);
    if (begin < end) f(begin, end);
  }
}

}  // namespace kernels
