// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the updates of Adam with decoupled weight decay, and of RMSprop.
#include "kernels/adamw_update.hpp"
#include "kernels/cuda/update_loop.cuh"

namespace kernels {
namespace {

template <class T>
struct AdamwDirection {
  T* mu;
  float *nu, *nu_max;  // nu_max may be null
  float keep1, add1, keep2, add2, correction1, correction2, eps, eps_root;

  static AdamwDirection of(const AdamwUpdate& a) {
    return {static_cast<T*>(a.mu.data),
            a.nu.f32(),
            a.nu_max.none() ? nullptr : a.nu_max.f32(),
            a.keep1,
            a.add1,
            a.keep2,
            a.add2,
            a.correction1,
            a.correction2,
            a.eps,
            a.eps_root};
  }
  static bool is_for(const AdamwUpdate& a) {
    return !a.divides_first && size_of(a.mu.type) == sizeof(T);
  }
  static bool packs_fit_state(const AdamwUpdate& a) {
    return packs_fit(kUpdatePack, 0, {a.mu, a.nu, a.nu_max});
  }

  template <int N>
  __device__ Floats<N> of(int64_t i, const Floats<N>& g) const {
    Floats<N> m = load<true, N>(mu + i, N), v = load<true, N>(nu + i, N), d;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      m[k] = fmaf(keep1, m[k], add1 * g[k]);
      v[k] = fmaf(keep2, v[k], add2 * (g[k] * g[k]));
    }
    store<true>(mu + i, m, N);
    store<true>(nu + i, v, N);
    if (nu_max) {
      const Floats<N> before = load<true, N>(nu_max + i, N);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = before[k] > v[k] ? before[k] : v[k];
      store<true>(nu_max + i, v, N);
    }
#pragma unroll
    for (int k = 0; k < N; ++k)
      d[k] = m[k] / correction1 / (sqrtf(v[k] / correction2 + eps_root) + eps);
    return d;
  }
};

struct DividedDirection {
  float *mu, *nu, *centre;  // mu and centre may be null
  float keep1, keep2, add2, eps;

  static DividedDirection of(const AdamwUpdate& a) {
    return {a.mu.none() ? nullptr : a.mu.f32(),
            a.nu.f32(),
            a.centre.none() ? nullptr : a.centre.f32(),
            a.keep1,
            a.keep2,
            a.add2,
            a.eps};
  }
  static bool is_for(const AdamwUpdate& a) { return a.divides_first; }
  static bool packs_fit_state(const AdamwUpdate& a) {
    return packs_fit(kUpdatePack, 0, {a.mu, a.nu, a.centre});
  }

  template <int N>
  __device__ Floats<N> of(int64_t i, const Floats<N>& g) const {
    Floats<N> v = load<true, N>(nu + i, N), d;
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = fmaf(keep2, v[k], add2 * (g[k] * g[k]));
    store<true>(nu + i, v, N);
    if (centre) {
      Floats<N> c = load<true, N>(centre + i, N);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        c[k] = fmaf(add2, g[k] - c[k], c[k]);
        v[k] = fmaxf(0.0f, fmaf(-c[k], c[k], v[k]));
      }
      store<true>(centre + i, c, N);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) d[k] = g[k] / (sqrtf(v[k]) + eps);
    if (mu) {
      const Floats<N> before = load<true, N>(mu + i, N);
#pragma unroll
      for (int k = 0; k < N; ++k) d[k] = fmaf(keep1, before[k], d[k]);
      store<true>(mu + i, d, N);
    }
    return d;
  }
};

}  // namespace

void run_cuda(std::span<const AdamwUpdate> all, Queue& queue) {
  update_all<AdamwDirection<uint16_t>, AdamwDirection<float>, DividedDirection>(all, queue);
}

}  // namespace kernels
