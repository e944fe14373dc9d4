// SPDX-License-Identifier: Apache-2.0
// CUDA implementation of the update of plain gradient descent.
#include "kernels/apply_update.hpp"
#include "kernels/cuda/update_loop.cuh"

namespace kernels {
namespace {

struct PlainDirection {
  static PlainDirection of(const ApplyUpdate&) { return {}; }
  static bool is_for(const ApplyUpdate&) { return true; }
  static bool packs_fit_state(const ApplyUpdate&) { return true; }
  template <int N>
  __device__ Floats<N> of(int64_t, const Floats<N>& g) const {
    return g;
  }
};

}  // namespace

void run_cuda(std::span<const ApplyUpdate> all, Queue& queue) {
  update_all<PlainDirection>(all, queue);
}

}  // namespace kernels
