// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the update of plain gradient descent.
#include "kernels/apply_update.hpp"

#include <cstring>

#include "kernels/cpu/update_loop.hpp"

namespace kernels {

void run_cpu(const ApplyUpdate& a, Queue& queue) {
  loops::update_elements(a.update, queue, [](int64_t, int64_t n, const float* g, float* out) {
    std::memcpy(out, g, size_t(n) * sizeof(float));
  });
}

}  // namespace kernels
