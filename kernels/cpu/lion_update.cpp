// SPDX-License-Identifier: Apache-2.0
// CPU implementation of Lion's update.
#include "kernels/lion_update.hpp"

#include "base/fused.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cpu/update_loop.hpp"

namespace kernels {
namespace {

template <class T>
void run_typed(const LionUpdate& a, Queue& queue) {
  T* all_mu = static_cast<T*>(a.mu.data);
  const float keep1 = a.keep1, add1 = a.add1, keep2 = a.keep2, add2 = a.add2;
  loops::update_elements(a.update, queue,
                         [=](int64_t begin, int64_t n, const float* g, float* out) {
                           T* mu = all_mu + begin;
#pragma omp simd
                           for (int64_t i = 0; i < n; ++i) {
                             const float before = loops::to_float(mu[i]);
                             const float toward = base::fused(keep1, before, add1 * g[i]);
                             mu[i] = loops::store_as<T>(base::fused(keep2, before, add2 * g[i]));
                             out[i] = toward > 0 ? 1.0f : toward < 0 ? -1.0f : 0.0f;
                           }
                         });
}

}  // namespace

void run_cpu(const LionUpdate& a, Queue& queue) {
  if (a.mu.type == DType::bf16)
    run_typed<loops::Bf16>(a, queue);
  else
    run_typed<float>(a, queue);
}

}  // namespace kernels
