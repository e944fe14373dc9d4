// SPDX-License-Identifier: Apache-2.0
// CPU implementation of GELU and its gradient. vector_rows.hpp computes them.
#include "kernels/gelu.hpp"

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"

namespace kernels {

void run_cpu(const GeluForward& a, Queue& queue) {
  vector_table().with(a.x.type, [&](const auto& loops, auto element) {
    auto *y = static_cast<decltype(element)*>(a.y.data),
         *x = static_cast<decltype(element)*>(a.x.data);
    for_ranges(queue, a.x.count, a.x.count, 64,
               [&](int64_t i, int64_t end) { loops.gelu_forward(y + i, x + i, end - i); });
  });
}

void run_cpu(const GeluBackward& a, Queue& queue) {
  vector_table().with(a.x.type, [&](const auto& loops, auto element) {
    using T = decltype(element);
    auto *dx = static_cast<T*>(a.dx.data), *dy = static_cast<T*>(a.dy.data),
         *x = static_cast<T*>(a.x.data);
    for_ranges(queue, a.x.count, a.x.count, 64, [&](int64_t i, int64_t end) {
      loops.gelu_backward(dx + i, dy + i, x + i, end - i);
    });
  });
}

}  // namespace kernels
