// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the decision about clipping.
#include "kernels/clip_gradient.hpp"

#include <cmath>

namespace kernels {

void run_cpu(const ClipGradient& a, Queue&) {
  double total = 0;
  for (int64_t i = 0; i < a.places.count; ++i) {
    const double square = a.squares.f64()[a.places.i32()[i]];
    if (!a.found.none()) a.found.f64()[i] = square;
    total += square;
  }
  const double norm = std::sqrt(total);
  const auto size = float(size_of_gradient(norm, numbers_of(a.largest), a.largest.count));
  const bool clipped = a.bound > 0 && !(size < a.bound);
  bool finite = std::isfinite(norm);
  for (int64_t i = 0; i < a.must_be_finite.count; ++i)
    finite = finite && std::isfinite(a.must_be_finite.f64()[i]);
  *a.norm.f64() = norm;
  float* decision = a.decision.f32();
  decision[0] = clipped ? size : 1;
  decision[1] = clipped ? a.bound : 1;
  decision[2] = finite && (a.drop == 0 || size < a.drop);
}

}  // namespace kernels
