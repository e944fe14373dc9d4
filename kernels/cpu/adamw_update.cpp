// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the updates of Adam with decoupled weight decay, and of RMSprop.
#include "kernels/adamw_update.hpp"

#include "base/fused.hpp"
#include "kernels/bf16_value.hpp"
#include "kernels/cpu/update_loop.hpp"

namespace kernels {
namespace {

template <class T, bool kMax>
void run_typed(const AdamwUpdate& a, Queue& queue) {
  T* all_mu = static_cast<T*>(a.mu.data);
  float *all_nu = a.nu.f32(), *all_max = kMax ? a.nu_max.f32() : nullptr;
  const float keep1 = a.keep1, add1 = a.add1, keep2 = a.keep2, add2 = a.add2;
  const float c1 = a.correction1, c2 = a.correction2, eps = a.eps, eps_root = a.eps_root;
  loops::update_elements(a.update, queue,
                         [=](int64_t begin, int64_t n, const float* g, float* out) {
                           T* mu = all_mu + begin;
                           float* nu = all_nu + begin;
                           float* most = kMax ? all_max + begin : nullptr;
#pragma omp simd
                           for (int64_t i = 0; i < n; ++i) {
                             float m = base::fused(keep1, loops::to_float(mu[i]), add1 * g[i]);
                             float v = base::fused(keep2, nu[i], add2 * (g[i] * g[i]));
                             mu[i] = loops::store_as<T>(m);
                             nu[i] = v;
                             if constexpr (kMax) most[i] = v = std::max(most[i], v);
                             out[i] = m / c1 / (std::sqrt(v / c2 + eps_root) + eps);
                           }
                         });
}

template <bool kMomentum, bool kCentre>
void run_divided(const AdamwUpdate& a, Queue& queue) {
  float *all_nu = a.nu.f32(), *all_mu = kMomentum ? a.mu.f32() : nullptr,
        *all_centre = kCentre ? a.centre.f32() : nullptr;
  const float keep1 = a.keep1, keep2 = a.keep2, add2 = a.add2, eps = a.eps;
  loops::update_elements(a.update, queue,
                         [=](int64_t begin, int64_t n, const float* g, float* out) {
                           float* nu = all_nu + begin;
                           float* mu = kMomentum ? all_mu + begin : nullptr;
                           float* centre = kCentre ? all_centre + begin : nullptr;
#pragma omp simd
                           for (int64_t i = 0; i < n; ++i) {
                             float v = base::fused(keep2, nu[i], add2 * (g[i] * g[i]));
                             nu[i] = v;
                             if constexpr (kCentre) {
                               const float c = base::fused(add2, g[i] - centre[i], centre[i]);
                               centre[i] = c;
                               v = std::max(0.0f, base::fused(-c, c, v));
                             }
                             float d = g[i] / (std::sqrt(v) + eps);
                             if constexpr (kMomentum) mu[i] = d = base::fused(keep1, mu[i], d);
                             out[i] = d;
                           }
                         });
}

}  // namespace

void run_cpu(const AdamwUpdate& a, Queue& queue) {
  if (a.divides_first) {
    if (a.mu.none())
      a.centre.none() ? run_divided<false, false>(a, queue) : run_divided<false, true>(a, queue);
    else
      a.centre.none() ? run_divided<true, false>(a, queue) : run_divided<true, true>(a, queue);
    return;
  }
  const bool narrow = a.mu.type == DType::bf16;
  if (a.nu_max.none())
    narrow ? run_typed<loops::Bf16, false>(a, queue) : run_typed<float, false>(a, queue);
  else
    narrow ? run_typed<loops::Bf16, true>(a, queue) : run_typed<float, true>(a, queue);
}

}  // namespace kernels
