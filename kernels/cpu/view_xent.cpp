// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the cross-entropy between views.
#include "kernels/view_xent.hpp"

#include <algorithm>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"
#include "kernels/instruction_choice.hpp"

namespace kernels {
namespace {

// Returns the largest value; NaN is ignored, because it spoils the sum anyway.
float largest(const float* x, int64_t n) {
  float top = x[0];
  for (int64_t k = 1; k < n; ++k) top = x[k] > top ? x[k] : top;
  return top;
}

// Calls f(first, count, values) with exp((x - shift - top) / temperature) of each block of a row;
// shift may be null.
template <class F>
void for_powers(const float* x, const float* shift, float top, float temperature, int64_t n,
                const F& f) {
  constexpr int64_t kBlock = 256;
  const float cold = 1 / temperature;
  const auto exp_of = vector_table().exp_of;
  alignas(64) float e[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    for (int64_t i = 0; i < count; ++i)
      e[i] = (x[begin + i] - (shift ? shift[begin + i] : 0) - top) * cold;
    exp_of(e, e, count);
    f(begin, count, e);
  }
}

double sum_of(const float* e, int64_t n) {
  double sum = 0;
  if (bits_are_portable()) {  // in order; the compiler chooses the lanes below
    for (int64_t i = 0; i < n; ++i) sum += double(e[i]);
    return sum;
  }
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += double(e[i]);
  return sum;
}

// Returns the sum over the targets of view v of -sum_k t_k log softmax(x / T)_k. If gradient is not
// null, it becomes `scale` times the derivative; it may be x.
double view_loss(const ViewXent& a, int64_t v, const float* x, const float* targets,
                 float* gradient, double scale) {
  const float top = largest(x, a.columns);
  const double cold = 1 / double(a.temperature);
  double weight = 0, part = 0, sum = 0;
  for (int64_t t = 0; t < a.target_count; ++t) {
    if (!a.compares(v, t)) continue;
    const float* q = targets + t * a.columns;
    if (bits_are_portable()) {  // in order, as in sum_of
      for (int64_t k = 0; k < a.columns; ++k) {
        weight += double(q[k]);
        part = base::fused(double(q[k]), double(x[k]) - double(top), part);
      }
      continue;
    }
#pragma omp simd reduction(+ : weight, part)
    for (int64_t k = 0; k < a.columns; ++k) {
      weight += double(q[k]);
      part = base::fused(double(q[k]), double(x[k]) - double(top), part);
    }
  }
  for_powers(x, nullptr, top, a.temperature, a.columns,
             [&](int64_t begin, int64_t count, const float* e) {
               sum += sum_of(e, count);
               if (gradient) std::copy_n(e, count, gradient + begin);
             });
  const double loss = base::fused(weight, base::math::log(sum), -(part * cold));
  if (!gradient) return loss;
  const float factor = float(scale * cold * weight / sum), share = float(scale * cold);
  for (int64_t k = 0; k < a.columns; ++k) gradient[k] *= factor;
  for (int64_t t = 0; t < a.target_count; ++t) {
    if (!a.compares(v, t)) continue;
    const float* q = targets + t * a.columns;
#pragma omp simd
    for (int64_t k = 0; k < a.columns; ++k) gradient[k] = base::fused(-share, q[k], gradient[k]);
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
      float top = x[0] - centre[0];
      for (int64_t k = 1; k < a.columns; ++k) top = std::max(top, x[k] - centre[k]);
      double sum = 0;
      for_powers(x, centre, top, a.temperature, a.columns,
                 [&](int64_t begin, int64_t count, const float* e) {
                   sum += sum_of(e, count);
                   std::copy_n(e, count, y + begin);
                 });
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
    out = float(base::fused(part, loss, a.loss_write == Write::accumulate ? double(out) : 0));
  }
}

}  // namespace kernels
