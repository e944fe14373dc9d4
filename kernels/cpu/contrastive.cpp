// SPDX-License-Identifier: Apache-2.0
// CPU implementation of InfoNCE over views of examples.
#include "kernels/contrastive.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/elementary.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// log(exp(a) + exp(b))
double log_add(double a, double b) {
  const double top = std::max(a, b);
  return std::isinf(top) ? top : top + base::math::log1p(base::math::exp(-std::abs(a - b)));
}

// Returns log of the sum of exp(x[b]) over the columns of the row's group, without its own example.
double log_negatives(const float* x, const ContrastiveShape& s, int64_t r) {
  const int64_t own = s.own(r), begin = s.group_begin(r), end = s.group_end(r);
  float top = -std::numeric_limits<float>::infinity();
  for (int64_t b = begin; b < end; ++b)
    if (b < own || b >= own + s.views) top = x[b] <= top ? top : x[b];
  if (std::isinf(top)) return double(top);
  double sum = 0;
  for (int64_t b = begin; b < end; ++b)
    if (b < own || b >= own + s.views) sum += base::math::exp(double(x[b]) - double(top));
  return double(top) + base::math::log(sum);
}

}  // namespace

void run_cpu(const ContrastiveTerms& a, Queue& queue) {
  const ContrastiveShape& s = a.shape;
  const double pairs = double(s.views * (s.views - 1));
  for_ranges(queue, s.rows / s.views, a.logits.count, 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      double loss = 0;
      for (int64_t r = i * s.views; r < (i + 1) * s.views; ++r) {
        const float* x = a.logits.f32() + r * s.columns;
        const double negatives = log_negatives(x, s, r);
        double weight = kNothing;
        for (int64_t p = s.own(r); p < s.own(r) + s.views; ++p) {
          if (p == s.first + r) continue;
          const double all = log_add(double(x[p]), negatives);
          loss += all - double(x[p]);
          weight = log_add(weight, -all);
        }
        a.terms.f64()[2 * r] = negatives;
        a.terms.f64()[2 * r + 1] = weight;
      }
      a.loss.f32()[i] = float(loss / pairs);
    }
  });
}

void run_cpu(const ContrastiveGradient& a, Queue& queue) {
  const ContrastiveShape& s = a.shape;
  const double scale = double(a.scale) * (a.loss_scale.none() ? 1 : double(*a.loss_scale.f32()));
  const double* terms = a.terms.f64();
  for_ranges(queue, s.rows, a.logits.count, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      float* x = a.logits.f32() + r * s.columns;
      const int64_t me = s.first + r, own = s.own(r);
      std::fill(x, x + s.group_begin(r), 0.0f);
      std::fill(x + s.group_end(r), x + s.columns, 0.0f);
      for (int64_t b = s.group_begin(r); b < s.group_end(r); ++b) {
        const double l = double(x[b]);
        double g = 0;
        if (b < own || b >= own + s.views)
          g = base::math::exp(l + terms[2 * me + 1]) + base::math::exp(l + terms[2 * b + 1]);
        else if (b != me)  // 1 / (1 + exp(log N - l)) - 1, of both rows
          g = -1 / (1 + base::math::exp(l - terms[2 * me])) -
              1 / (1 + base::math::exp(l - terms[2 * b]));
        x[b] = float(scale * g);
      }
    }
  });
}

}  // namespace kernels
