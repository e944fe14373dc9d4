// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the sigmoid loss of pairs.
#include "kernels/pair_sigmoid.hpp"

#include <algorithm>
#include <cmath>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {

void run_cpu(const PairSigmoid& a, Queue& queue) {
  const double temperature = base::math::exp(double(*a.t.f32())), bias = double(*a.b.f32());
  const double scale = double(a.scale) * (a.loss_scale.none() ? 1 : double(*a.loss_scale.f32()));
  for_ranges(queue, a.rows, 8 * a.cosines.count, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      float* x = a.cosines.f32() + r * a.columns;
      double loss = 0, along = 0, total = 0;
      for (int64_t c = 0; c < a.columns; ++c) {
        const double cosine = double(x[c]), sign = c == a.first + r ? 1 : -1;
        const double z = sign * base::fused(temperature, cosine, bias);
        const double small = base::math::exp(-std::abs(z));  // sigmoid(-z) without overflow
        const double d = -sign * (z > 0 ? small : 1) / (1 + small);
        loss += std::max(-z, 0.0) + base::math::log1p(small);
        along = base::fused(d, cosine, along);
        total += d;
        x[c] = float(scale * temperature * d);
      }
      if (!a.loss.none()) a.loss.f32()[r] = float(loss);
      if (!a.dt.none()) a.dt.f32()[r] = float(scale * temperature * along);
      if (!a.db.none()) a.db.f32()[r] = float(scale * total);
    }
  });
}

}  // namespace kernels
