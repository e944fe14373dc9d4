// SPDX-License-Identifier: Apache-2.0
#include "eval/fits/newton.hpp"

#include <algorithm>
#include <cmath>

#include "base/fused.hpp"
#include "eval/fits/dense.hpp"

namespace eval {
namespace {

using Vector = std::vector<double>;

double product_of(const Vector& a, const Vector& b) {
  return dot(a.data(), b.data(), int64_t(a.size()));
}

// Returns an approximate solution of H s = -g, by conjugate gradients that are scaled with the
// diagonal of H. The remaining error is below `error`.
Vector newton_step(Convex& function, const Vector& g, double error, int64_t products) {
  const size_t n = g.size();
  Vector scale(n), step(n, 0.0), residual(n), scaled(n), direction(n), product(n);
  function.diagonal(scale);
  for (size_t i = 0; i < n; ++i) {
    residual[i] = -g[i];
    direction[i] = scaled[i] = residual[i] / scale[i];
  }
  double square = product_of(residual, scaled);
  for (int64_t p = 0; p < products && std::sqrt(product_of(residual, residual)) > error; ++p) {
    function.second(direction, product);
    const double curvature = product_of(direction, product);
    if (!(curvature > 0)) break;  // flat in double precision
    const double length = square / curvature;
    for (size_t i = 0; i < n; ++i) {
      step[i] = base::fused(length, direction[i], step[i]);
      residual[i] = base::fused(-length, product[i], residual[i]);
      scaled[i] = residual[i] / scale[i];
    }
    const double before = square;
    square = product_of(residual, scaled);
    for (size_t i = 0; i < n; ++i)
      direction[i] = base::fused(square / before, direction[i], scaled[i]);
  }
  return step;
}

}  // namespace

std::vector<double> minimised(Convex& function, const NewtonLimits& limits) {
  constexpr double kSufficient = 1e-4;  // share of the decrease that the gradient promises
  constexpr double kRounding = 1e-14;   // of values, relative
  constexpr int kHalvings = 40;
  Vector w(size_t(function.size()), 0.0), g(w.size()), next(w.size());
  double value = function.gradient(w, g), length = std::sqrt(product_of(g, g));
  const double first = length;
  if (!std::isfinite(first)) return Vector(w.size(), first - first);  // NaN
  for (int64_t s = 0; s < limits.steps && length > limits.gradient * first; ++s) {
    // The error falls with the gradient, so that the last steps converge fast.
    const double error = length * std::min(0.1, std::sqrt(length / first));
    const Vector step = newton_step(function, g, error, limits.products);
    const double slope = product_of(g, step), rounding = kRounding * std::abs(value);
    double share = 1;
    bool lower = false;
    for (int h = 0; h < kHalvings && !lower && slope < 0; ++h) {
      if (h > 0) share /= 2;
      for (size_t i = 0; i < w.size(); ++i) next[i] = base::fused(share, step[i], w[i]);
      lower = function.value(next) <= base::fused(kSufficient * share, slope, value) + rounding;
    }
    if (!lower) break;
    w.swap(next);
    const double before = length;
    value = function.gradient(w, g);
    length = std::sqrt(product_of(g, g));
    // The values of these points differ by rounding alone, so the gradient decides.
    if (-slope < rounding && length > before / 2) break;
  }
  return w;
}

}  // namespace eval
