// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the cross-entropy with targets.
#include "kernels/target_xent.hpp"

#include <algorithm>
#include <cmath>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

// One row. `weights` and `scale` may be null; if `scale` is not, x becomes *scale * gradient.
struct Row {
  float* x;
  const float *t, *weights, *scale;
  int64_t columns;

  bool known(int64_t c) const { return t[c] >= 0; }
  double weight(int64_t c) const { return weights ? double(weights[c]) : 1; }
};

bool is_hit(const Row& r) {
  int64_t first = -1;
  float most = 0;
  for (int64_t c = 0; c < r.columns; ++c) {
    if (!r.known(c)) continue;
    most = std::max(most, r.t[c]);
    if (first < 0 || !(r.x[c] <= r.x[first])) first = c;
  }
  return first >= 0 && most > 0 && r.t[first] == most;
}

double softmax_row(const Row& r) {
  float top = r.x[0];
  for (int64_t c = 1; c < r.columns; ++c) top = std::max(top, r.x[c]);
  double sum = 0, mass = 0, product = 0;
  for (int64_t c = 0; c < r.columns; ++c) {
    const double d = double(r.x[c]) - double(top);
    sum += base::math::exp(d);
    if (!r.known(c)) continue;
    const double q = r.weight(c) * double(r.t[c]);
    mass += q;
    product = base::fused(q, d, product);
  }
  for (int64_t c = 0; r.scale && c < r.columns; ++c) {
    const double p = base::math::exp(double(r.x[c]) - double(top)) / sum;
    double slope = mass * p;
    if (r.known(c))  // one product is rounded, the other is not
      slope = r.weights ? base::fused(-r.weight(c), double(r.t[c]), slope)
                        : base::fused(mass, p, -double(r.t[c]));
    r.x[c] = float(double(*r.scale) * slope);
  }
  return base::fused(mass, base::math::log(sum), -product);
}

double sigmoid_row(const Row& r) {
  double loss = 0;
  for (int64_t c = 0; c < r.columns; ++c) {
    const double z = double(r.x[c]), e = base::math::exp(-std::abs(z)), t = double(r.t[c]);
    const double w = r.known(c) ? r.weight(c) : 0;
    if (r.known(c))
      loss = base::fused(w, base::fused(-t, z, std::max(z, 0.0) + base::math::log1p(e)), loss);
    if (r.scale)
      r.x[c] = r.known(c) ? float(double(*r.scale) * w * ((z >= 0 ? 1 : e) / (1 + e) - t)) : 0;
  }
  return loss;
}

double error_row(const Row& r, ClassLoss kind, double beta) {
  double loss = 0;
  const double n = double(r.columns);
  for (int64_t c = 0; c < r.columns; ++c) {
    const double error = double(r.x[c]) - double(r.t[c]), w = r.weight(c);
    loss = base::fused(w, error_loss(kind, error, beta), loss);
    if (r.scale) r.x[c] = float(double(*r.scale) * w * error_slope(kind, error, beta) / n);
  }
  return loss / n;
}

}  // namespace

void run_cpu(const TargetXent& a, Queue& queue) {
  const float scale = a.scale * (a.loss_scale.none() ? 1 : *a.loss_scale.f32());
  for_ranges(queue, a.rows, a.rows * a.columns, 1, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const Row row{.x = a.logits.f32() + i * a.columns,
                    .t = a.targets.f32() + i * a.columns,
                    .weights = a.weights.none() ? nullptr : a.weights.f32(),
                    .scale = a.gradient ? &scale : nullptr,
                    .columns = a.columns};
      if (!a.hits.none()) a.hits.f32()[i] = is_hit(row) ? 1.0f : 0.0f;
      a.loss.f32()[i] = float(compares_values(a.kind) ? error_row(row, a.kind, double(a.beta))
                              : a.kind == ClassLoss::softmax ? softmax_row(row)
                                                             : sigmoid_row(row));
    }
  });
}

}  // namespace kernels
