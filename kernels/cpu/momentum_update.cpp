// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the update with momentum.
#include "kernels/momentum_update.hpp"

#include "base/fused.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cpu/update_loop.hpp"

namespace kernels {
namespace {

template <class T>
void run_typed(const MomentumUpdate& a, Queue& queue) {
  T* trace = static_cast<T*>(a.trace.data);
  const float keep = a.keep, add = a.add, ahead = a.nesterov ? a.momentum : 0.0f;
  const bool nesterov = a.nesterov;
  loops::update_elements(a.update, queue,
                         [=](int64_t begin, int64_t n, const float* g, float* out) {
                           T* t = trace + begin;
                           if (nesterov) {
#pragma omp simd
                             for (int64_t i = 0; i < n; ++i) {
                               float next = base::fused(keep, loops::to_float(t[i]), add * g[i]);
                               t[i] = loops::store_as<T>(next);
                               out[i] = base::fused(ahead, next, g[i]);
                             }
                           } else {
#pragma omp simd
                             for (int64_t i = 0; i < n; ++i) {
                               float next = base::fused(keep, loops::to_float(t[i]), add * g[i]);
                               t[i] = loops::store_as<T>(next);
                               out[i] = next;
                             }
                           }
                         });
}

}  // namespace

void run_cpu(const MomentumUpdate& a, Queue& queue) {
  if (a.trace.type == DType::bf16)
    run_typed<loops::Bf16>(a, queue);
  else
    run_typed<float>(a, queue);
}

}  // namespace kernels
