// SPDX-License-Identifier: Apache-2.0
// CPU implementation of the cross-entropy over classes.
#include "kernels/class_xent.hpp"

#include <algorithm>
#include <cmath>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"

namespace kernels {
namespace {

int64_t rank_of(const float* x, int64_t columns, int64_t label) {
  if (label < 0) return columns;
  int64_t rank = 0;
  const float mine = x[label];
  for (int64_t c = 0; c < columns; ++c)
    rank += c != label && (!(x[c] <= mine) || (c < label && x[c] == mine));
  return rank + (columns == 1 && std::isnan(mine));
}

// Returns the loss. If `scale` is not null, x becomes *scale * gradient.
double softmax_row(float* x, int64_t columns, const ClassTarget& q, const float* scale) {
  float top = x[0];
  for (int64_t c = 1; c < columns; ++c) top = std::max(top, x[c]);
  double sum = 0, shifted = 0;
  for (int64_t c = 0; c < columns; ++c) {
    const double d = double(x[c]) - double(top);
    sum += base::math::exp(d);
    shifted += d;
  }
  auto d_at = [&](int c) { return double(x[c]) - double(top); };
  const double blend =
      base::fused(double(q.share), d_at(q.label), (1 - double(q.share)) * d_at(q.other));
  const double loss =
      base::math::log(sum) - base::fused(double(q.off), shifted, double(q.lift) * blend);
  for (int64_t c = 0; scale && c < columns; ++c) {
    const double p = base::math::exp(double(x[c]) - double(top)) / sum;
    x[c] = float(double(*scale) * (p - double(q.at(c))));
  }
  return loss;
}

double sigmoid_row(float* x, int64_t columns, const ClassTarget& q, const float* scale) {
  double loss = 0;
  for (int64_t c = 0; c < columns; ++c) {
    const double z = double(x[c]), e = base::math::exp(-std::abs(z)), target = double(q.at(c));
    loss += base::fused(-target, z, std::max(z, 0.0) + base::math::log1p(e));
    if (!scale) continue;
    const double p = (z >= 0 ? 1 : e) / (1 + e);
    x[c] = float(double(*scale) * (p - target));
  }
  return loss;
}

double error_row(float* x, const ClassXent& a, const ClassTarget& q, const float* scale) {
  double loss = 0;
  const double beta = double(a.beta), n = double(a.columns);
  for (int64_t c = 0; c < a.columns; ++c) {
    const double error = double(x[c]) - double(q.at(c));
    if (a.kind == ClassLoss::squared)
      loss = base::fused(error, error, loss);
    else
      loss += error_loss(a.kind, error, beta);
    if (scale) x[c] = float(double(*scale) * error_slope(a.kind, error, beta) / n);
  }
  return loss / n;
}

}  // namespace

void run_cpu(const ClassXent& a, Queue& queue) {
  const int32_t *labels = a.labels.i32(), *others = a.others.none() ? labels : a.others.i32();
  need_ids(a.op, labels, a.rows, -1, a.columns);
  need_ids(a.op, others, a.rows, a.others.none() ? -1 : 0, a.columns);
  const float scale = a.scale * (a.loss_scale.none() ? 1 : *a.loss_scale.f32());
  const ClassTarget any = class_target(a.smoothing, a.columns);
  for_ranges(queue, a.rows, a.rows * a.columns, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      ClassTarget q = any;
      q.label = labels[r];
      q.other = others[r];
      if (!a.shares.none()) q.share = a.shares.f32()[r];
      float* x = a.logits.f32() + r * a.columns;
      if (!a.ranks.none()) a.ranks.i32()[r] = int32_t(rank_of(x, a.columns, labels[r]));
      if (labels[r] < 0) {
        a.loss.f32()[r] = 0;
        if (a.gradient) std::fill_n(x, a.columns, 0.0f);
        continue;
      }
      if (compares_values(a.kind)) {
        a.loss.f32()[r] = float(error_row(x, a, q, a.gradient ? &scale : nullptr));
        continue;
      }
      const auto row = a.kind == ClassLoss::softmax ? softmax_row : sigmoid_row;
      a.loss.f32()[r] = float(row(x, a.columns, q, a.gradient ? &scale : nullptr));
    }
  });
}

}  // namespace kernels
