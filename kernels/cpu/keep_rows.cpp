// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the end of a step that wrote some rows of a state.
#include "kernels/keep_rows.hpp"

#include <algorithm>

#include "kernels/cpu/parallel.hpp"

namespace kernels {

// Threads share the columns, because two rows of the index may be equal.
void run_cpu(const KeepRows& a, Queue& queue) {
  need_ids(a.op, a.index.i32(), a.rows, 0, a.state_rows);
  const bool applied = a.decided.f32()[2] != 0;
  for_ranges(queue, a.width, a.rows * a.width, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < a.rows; ++i) {
      const int64_t row = int64_t(a.index.i32()[i]) * a.width;
      if (!applied) {
        const float* from = a.before.f32() + i * a.width;
        std::copy(from + begin, from + end, a.state.f32() + row + begin);
        continue;
      }
      const int64_t first = std::max(row + begin, a.first),
                    last = std::min(row + end, a.first + a.kept.count);
      if (first < last)
        std::copy(a.state.f32() + first, a.state.f32() + last, a.kept.f32() + first - a.first);
    }
  });
}

}  // namespace kernels
