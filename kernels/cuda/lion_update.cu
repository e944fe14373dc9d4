// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of Lion's update.
#include "kernels/cuda/update_loop.cuh"
#include "kernels/lion_update.hpp"

namespace kernels {
namespace {

template <class T>
struct LionDirection {
  T* mu;
  float keep1, add1, keep2, add2;

  static LionDirection of(const LionUpdate& a) {
    return {static_cast<T*>(a.mu.data), a.keep1, a.add1, a.keep2, a.add2};
  }
  static bool is_for(const LionUpdate& a) { return size_of(a.mu.type) == sizeof(T); }
  static bool packs_fit_state(const LionUpdate& a) { return packs_fit(kUpdatePack, 0, {a.mu}); }

  template <int N>
  __device__ Floats<N> of(int64_t i, const Floats<N>& g) const {
    Floats<N> m = load<true, N>(mu + i, N), d;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float toward = fmaf(keep1, m[k], add1 * g[k]);
      d[k] = toward > 0 ? 1.0f : toward < 0 ? -1.0f : 0.0f;
      m[k] = fmaf(keep2, m[k], add2 * g[k]);
    }
    store<true>(mu + i, m, N);
    return d;
  }
};

}  // namespace

void run_cuda(std::span<const LionUpdate> all, Queue& queue) {
  update_all<LionDirection<uint16_t>, LionDirection<float>>(all, queue);
}

}  // namespace kernels
