// SPDX-License-Identifier: Apache-2.0
// CPU implementation of rows divided by their length. Lengths and dot products are sums in double.
#include "kernels/l2_normalize.hpp"

#include <algorithm>
#include <cmath>

#include "base/fused.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/instruction_choice.hpp"

namespace kernels {
namespace {

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  if (bits_are_portable()) {  // in order; the compiler chooses the lanes below
    for (int64_t i = 0; i < n; ++i) sum = base::fused(double(a[i]), double(b[i]), sum);
    return sum;
  }
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum = base::fused(double(a[i]), double(b[i]), sum);
  return sum;
}

}  // namespace

void run_cpu(const L2NormalizeForward& a, Queue& queue) {
  const float* x = a.x.f32();
  float* y = a.y.f32();
  for_ranges(queue, a.rows, a.rows * a.width, 16, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      const float* in = x + r * a.width;
      float* out = y + r * a.width;
      const double inverse = 1 / std::max(std::sqrt(dot(in, in, a.width)), double(kLeastLength));
      const double row = a.row_scale.none() ? 1 : double(a.row_scale.f32()[r]);
      const float factor = float(double(a.scale) * row * inverse);
      if (!a.inverse.none()) a.inverse.f32()[r] = float(inverse);
#pragma omp simd
      for (int64_t i = 0; i < a.width; ++i) out[i] = in[i] * factor;
    }
  });
}

void run_cpu(const L2NormalizeBackward& a, Queue& queue) {
  const float *x = a.x.f32(), *dy = a.dy.f32();
  float* dx = a.dx.none() ? nullptr : a.dx.f32();
  const bool add = a.write == Write::accumulate;
  for_ranges(queue, a.rows, a.rows * a.width, 16, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      const float *in = x + r * a.width, *d = dy + r * a.width;
      const float inverse = a.inverse.f32()[r];
      const double along = dot(in, d, a.width) * double(inverse);  // u . dy
      const double row = a.row_scale.none() ? 1 : double(a.row_scale.f32()[r]);
      if (!a.drow_scale.none()) {
        float& out = a.drow_scale.f32()[r];
        const float value = float(double(a.scale) * along);
        out = a.row_scale_write == Write::accumulate ? out + value : value;
      }
      if (!dx) continue;
      const float factor = float(double(a.scale) * row * double(inverse));
      const bool clamped = inverse >= 1 / kLeastLength;
      const float part = clamped ? 0 : float(along * double(inverse));
      float* out = dx + r * a.width;
#pragma omp simd
      for (int64_t i = 0; i < a.width; ++i) {
        const float across = base::fused(-in[i], part, d[i]);
        out[i] = add ? base::fused(factor, across, out[i]) : factor * across;
      }
    }
  });
}

}  // namespace kernels
