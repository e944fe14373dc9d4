// SPDX-License-Identifier: Apache-2.0
// CPU implementation of noise-contrastive estimation.
#include "kernels/nce_terms.hpp"

#include <algorithm>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

// Both return the loss of a row, and make x `scale` times its derivative.
double nce_row(float* x, const NceTerms& a, double scale) {
  const double z = double(*a.constant.f32()), noise = double(a.columns - 1) / a.samples,
               c = noise + NceTerms::kNceLeast;
  double loss = 0;
  for (int64_t k = 0; k < a.columns; ++k) {
    const double p = base::math::exp(double(x[k])) / z;
    loss -= k == 0 ? base::math::log(p / (p + c)) : base::math::log(noise / (p + c));
    x[k] = float(scale * (k == 0 ? -c : p) / (p + c));
  }
  return loss;
}

double softmax_row(float* x, const NceTerms& a, double scale) {
  const double top = double(*std::max_element(x, x + a.columns)), first = double(x[0]) - top;
  double sum = 0;
  for (int64_t k = 0; k < a.columns; ++k) sum += base::math::exp(double(x[k]) - top);
  for (int64_t k = 0; k < a.columns; ++k)
    x[k] = float(scale * (base::math::exp(double(x[k]) - top) / sum - (k == 0 ? 1 : 0)));
  return base::math::log(sum) - first;
}

}  // namespace

void run_cpu(const NceTotals& a, Queue& queue) {
  auto* sums = static_cast<double*>(queue.scratch(size_t(a.rows) * sizeof(double)));
  for_ranges(queue, a.rows, a.logits.count, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      const float* x = a.logits.f32() + r * a.columns;
      sums[r] = 0;
      for (int64_t k = 0; k < a.columns; ++k) sums[r] += base::math::exp(double(x[k]));
    }
  });
  double total = 0;
  for (int64_t r = 0; r < a.rows; ++r) total += sums[r];
  *a.total.f64() = total;
}

void run_cpu(const NceConstant& a, Queue&) {
  float& constant = *a.constant.f32();
  if (constant < 0) constant = float(*a.total.f64() / a.count * a.samples);
}

void run_cpu(const NceTerms& a, Queue& queue) {
  const double scale =
      double(a.factor) * double(a.scale) * (a.loss_scale.none() ? 1 : double(*a.loss_scale.f32()));
  for_ranges(queue, a.rows, a.logits.count, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      float* x = a.logits.f32() + r * a.columns;
      const double loss = a.kind == NceKind::nce ? nce_row(x, a, scale) : softmax_row(x, a, scale);
      float& out = a.loss.f32()[r];
      out = float(
          base::fused(double(a.factor), loss, a.loss_write == Write::accumulate ? double(out) : 0));
    }
  });
}

}  // namespace kernels
