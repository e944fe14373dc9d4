#include "kernels/momentum_update.hpp"
#include "kernels/update_loop.cuh"

namespace kernels {
namespace {

template <class T>
struct MomentumDirection {
  T* trace;
  float keep, momentum;
  bool nesterov;

  template <int N>
  __device__ Floats<N> of(int64_t i, const Floats<N>& g) const {
    Floats<N> t = load<true, N>(trace + i, N), d;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      t[k] = fmaf(keep, t[k], g[k]);
      d[k] = nesterov ? fmaf(momentum, t[k], g[k]) : t[k];
    }
    store<true>(trace + i, t, N);
    return d;
  }
};

template <class T>
void update_typed(const MomentumUpdate& a, Queue& queue) {
  const MomentumDirection<T> direction{static_cast<T*>(a.trace.data), a.keep, a.momentum, a.nesterov};
  update_elements(a.update, {a.trace}, direction, queue);
}

}  // namespace

void run_cuda(const MomentumUpdate& a, Queue& queue) {
  if (a.trace.type == DType::bf16)
    update_typed<uint16_t>(a, queue);
  else
    update_typed<float>(a, queue);
}

}  // namespace kernels
