#include "kernels/adamw_update.hpp"
#include "kernels/update_loop.cuh"

namespace kernels {
namespace {

template <class T>
struct AdamwDirection {
  T* mu;
  float* nu;
  float keep1, add1, keep2, add2, correction1, correction2, eps, eps_root;

  template <int N>
  __device__ Floats<N> of(int64_t i, const Floats<N>& g) const {
    Floats<N> m = load<true, N>(mu + i, N), v = load<true, N>(nu + i, N), d;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      m[k] = fmaf(keep1, m[k], add1 * g[k]);
      v[k] = fmaf(keep2, v[k], add2 * (g[k] * g[k]));
      d[k] = m[k] / correction1 / (sqrtf(v[k] / correction2 + eps_root) + eps);
    }
    store<true>(mu + i, m, N);
    store<true>(nu + i, v, N);
    return d;
  }
};

template <class T>
void update_typed(const AdamwUpdate& a, Queue& queue) {
  const AdamwDirection<T> direction{static_cast<T*>(a.mu.data),
                                    a.nu.f32(),
                                    a.keep1,
                                    a.add1,
                                    a.keep2,
                                    a.add2,
                                    a.correction1,
                                    a.correction2,
                                    a.eps,
                                    a.eps_root};
  update_elements(a.update, {a.mu, a.nu}, direction, queue);
}

}  // namespace

void run_cuda(const AdamwUpdate& a, Queue& queue) {
  if (a.mu.type == DType::bf16)
    update_typed<uint16_t>(a, queue);
  else
    update_typed<float>(a, queue);
}

}  // namespace kernels
