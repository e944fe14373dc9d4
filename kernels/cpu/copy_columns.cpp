// SPDX-License-Identifier: Apache-2.0
// CPU implementation of copies of columns.
#include "kernels/copy_columns.hpp"

#include <cstring>

#include "kernels/cpu/parallel.hpp"

namespace kernels {

void run_cpu(const CopyColumns& a, Queue& queue) {
  const int64_t size = device::size_of(a.x.type);
  for_ranges(queue, a.rows, a.rows * a.columns, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      char* y = static_cast<char*>(a.y.data) + r * a.leading_of_y() * size;
      const char* x = static_cast<const char*>(a.x.data) + r * a.leading_of_x() * size;
      if (a.write == Write::overwrite) {
        std::memcpy(y, x, size_t(a.columns * size));
        continue;
      }
      float* to = reinterpret_cast<float*>(y);
      const float* from = reinterpret_cast<const float*>(x);
      for (int64_t c = 0; c < a.columns; ++c) to[c] += from[c];
    }
  });
}

}  // namespace kernels
