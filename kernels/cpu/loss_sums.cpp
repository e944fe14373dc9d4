// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the sums over examples.
#include "kernels/loss_sums.hpp"

#include <algorithm>

namespace kernels {

void run_cpu(const LossSums& a, Queue&) {
  const int64_t examples = a.batch / a.slices;
  for (int64_t b = 0; b < a.batch; ++b) {
    double* sums = a.sums.f64() + b / examples * LossColumns::count;
    if (b % examples == 0) std::fill_n(sums, int64_t(LossColumns::count), 0.0);
    const bool second = !a.flags.none() && a.flags.u8()[b] == 0;
    add_example(
        sums,
        example_loss(a.loss.f32() + a.first.i32()[b], a.weights.f32() + b * a.length, a.length),
        second);
  }
}

}  // namespace kernels
