// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the update with momentum.
#include "kernels/cuda/update_loop.cuh"
#include "kernels/momentum_update.hpp"

namespace kernels {
namespace {

template <class T>
struct MomentumDirection {
  T* trace;
  float keep, add, momentum;
  bool nesterov;

  static MomentumDirection of(const MomentumUpdate& a) {
    return {static_cast<T*>(a.trace.data), a.keep, a.add, a.momentum, a.nesterov};
  }
  static bool is_for(const MomentumUpdate& a) { return size_of(a.trace.type) == sizeof(T); }
  static bool packs_fit_state(const MomentumUpdate& a) {
    return packs_fit(kUpdatePack, 0, {a.trace});
  }

  template <int N>
  __device__ Floats<N> of(int64_t i, const Floats<N>& g) const {
    Floats<N> t = load<true, N>(trace + i, N), d;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      t[k] = fmaf(keep, t[k], add * g[k]);
      d[k] = nesterov ? fmaf(momentum, t[k], g[k]) : t[k];
    }
    store<true>(trace + i, t, N);
    return d;
  }
};

}  // namespace

void run_cuda(std::span<const MomentumUpdate> all, Queue& queue) {
  update_all<MomentumDirection<uint16_t>, MomentumDirection<float>>(all, queue);
}

}  // namespace kernels
