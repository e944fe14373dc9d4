// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the cross-entropy between views.
#include "kernels/view_xent.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

// Returns the largest value; NaN is ignored, because it spoils the sum anyway.
float largest(const float* x, int64_t n) {
  float top = x[0];
  for (int64_t k = 1; k < n; ++k) top = x[k] > top ? x[k] : top;
  return top;
}

// Returns the sum over the targets of view v of -sum_k t_k log softmax(x / T)_k. If gradient is not
// null, it becomes `scale` times the derivative.
double view_loss(const ViewXent& a, int64_t v, const float* x, const float* targets,
                 float* gradient, double scale) {
  const double cold = 1 / double(a.temperature), top = double(largest(x, a.columns));
  double sum = 0;
  for (int64_t k = 0; k < a.columns; ++k) sum += std::exp((double(x[k]) - top) * cold);
  const double log_sum = std::log(sum);
  double loss = 0, weight = 0;
  for (int64_t t = 0; t < a.target_count; ++t) {
    if (!a.compares(v, t)) continue;
    const float* q = targets + t * a.columns;
    double all = 0, part = 0;
#pragma omp simd reduction(+ : all, part)
    for (int64_t k = 0; k < a.columns; ++k) {
      all += double(q[k]);
      part += double(q[k]) * (double(x[k]) - top);
    }
    loss += all * log_sum - part * cold;
    weight += all;
  }
  if (!gradient) return loss;
  for (int64_t k = 0; k < a.columns; ++k) {
    double g = weight * std::exp((double(x[k]) - top) * cold) / sum;
    for (int64_t t = 0; t < a.target_count; ++t)
      if (a.compares(v, t)) g -= double(targets[t * a.columns + k]);
    gradient[k] = float(scale * cold * g);
  }
  return loss;
}

}  // namespace

void run_cpu(const SoftTargets& a, Queue& queue) {
  const float* centre = a.centre.f32();
  for_ranges(queue, a.rows, a.x.count, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      const float* x = a.x.f32() + r * a.columns;
      float* y = a.y.f32() + r * a.columns;
      const double cold = 1 / double(a.temperature);
      double top = double(x[0]) - double(centre[0]), sum = 0;
      for (int64_t k = 1; k < a.columns; ++k) top = std::max(top, double(x[k]) - double(centre[k]));
      for (int64_t k = 0; k < a.columns; ++k) {
        const double e = std::exp((double(x[k]) - double(centre[k]) - top) * cold);
        sum += e;
        y[k] = float(e);
      }
      const float factor = float(1 / sum);
      for (int64_t k = 0; k < a.columns; ++k) y[k] *= factor;
    }
  });
}

void run_cpu(const ViewXent& a, Queue& queue) {
  const int64_t row = a.columns, n = a.examples * a.views;
  const double part = double(a.factor) / double(a.pairs());
  const double scale =
      part * double(a.scale) * (a.loss_scale.none() ? 1 : double(*a.loss_scale.f32()));
  auto* losses = static_cast<double*>(queue.scratch(size_t(n) * sizeof(double)));
  for_ranges(queue, n, a.scores.count, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r)
      losses[r] = view_loss(a, r % a.views, a.scores.f32() + r * row,
                            a.targets.f32() + r / a.views * a.target_count * row,
                            a.gradient.none() ? nullptr : a.gradient.f32() + r * row, scale);
  });
  for (int64_t b = 0; b < a.examples; ++b) {
    double loss = 0;
    for (int64_t v = 0; v < a.views; ++v) loss += losses[b * a.views + v];
    float& out = a.loss.f32()[b];
    out = float((a.loss_write == Write::accumulate ? double(out) : 0) + part * loss);
  }
}

}  // namespace kernels
