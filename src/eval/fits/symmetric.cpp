// SPDX-License-Identifier: Apache-2.0
#include "eval/fits/symmetric.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fused.hpp"
#include "eval/fits/dense.hpp"

namespace eval {
namespace {

constexpr double kUnit = std::numeric_limits<double>::epsilon();

// A symmetric tridiagonal matrix: below[i] is the element in row i + 1 and column i.
struct Tridiagonal {
  std::vector<double> diagonal, below;
};

// Step k reflects the space behind coordinate k so that column k has one number below the diagonal:
// A -= v w' + w v', where v is the reflected vector.
Tridiagonal tridiagonal_of(std::vector<double>& a, int64_t n, int threads) {
  Tridiagonal out{std::vector<double>(size_t(n)), std::vector<double>(size_t(n), 0.0)};
  std::vector<double> v(static_cast<size_t>(n)), w(v);
  for (int64_t k = 0; k < n; ++k) {
    const double* row = a.data() + k * n;
    const int64_t first = k + 1, m = n - first;
    out.diagonal[size_t(k)] = row[k];
    if (m == 0) break;
    double& below = out.below[size_t(k)] = row[first];
    const double rest = dot(row + first + 1, row + first + 1, m - 1);
    if (rest == 0) continue;  // the column has one number already
    std::copy_n(row + first, m, v.begin());
    below = std::copysign(std::sqrt(base::fused(v[0], v[0], rest)), -v[0]);
    v[0] -= below;
    const double scale = 2 / dot(v.data(), v.data(), m);
    for_parts(threads, m, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        w[size_t(i)] = scale * dot(a.data() + (first + i) * n + first, v.data(), m);
    });
    add_scaled(w.data(), -scale / 2 * dot(w.data(), v.data(), m), v.data(), m);
    for_parts(threads, m, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double* to = a.data() + (first + i) * n + first;
        const double of_v = v[size_t(i)], of_w = w[size_t(i)];
        for (int64_t j = 0; j < m; ++j)
          to[j] -= base::fused(of_v, w[size_t(j)], of_w * v[size_t(j)]);
      }
    });
  }
  return out;
}

// Returns the number of eigenvalues below x, which is the number of negative pivots of T - x I.
int64_t count_below(const Tridiagonal& t, double x, double least_pivot) {
  int64_t count = 0;
  double pivot = 1;
  for (size_t i = 0; i < t.diagonal.size(); ++i) {
    const double side = i ? t.below[i - 1] : 0;
    pivot = t.diagonal[i] - x - side * side / pivot;
    if (std::abs(pivot) < least_pivot) pivot = -least_pivot;
    count += pivot < 0;
  }
  return count;
}

}  // namespace

std::vector<double> symmetric_eigenvalues(std::vector<double>& a, int64_t n, int threads) {
  const Tridiagonal t = tridiagonal_of(a, n, threads);
  double bound = 0;  // of all magnitudes (Gershgorin)
  for (size_t i = 0; i < size_t(n); ++i)
    bound = std::max(
        bound, std::abs(t.diagonal[i]) + std::abs(t.below[i]) + (i ? std::abs(t.below[i - 1]) : 0));
  std::vector<double> out(size_t(n), 0.0);
  if (bound == 0) return out;
  for_parts(threads, n, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      double low = -bound, high = bound;
      while (high - low > kUnit * bound) {
        const double middle = low + (high - low) / 2;
        (count_below(t, middle, kUnit * kUnit * bound) > k ? high : low) = middle;
      }
      out[size_t(k)] = low + (high - low) / 2;
    }
  });
  return out;
}

bool factorise(std::vector<double>& a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    double* row = a.data() + i * n;
    for (int64_t j = 0; j < i; ++j)
      row[j] = (row[j] - dot(row, a.data() + j * n, j)) / a[size_t(j * n + j)];
    const double square = row[i] - dot(row, row, i);
    if (!(square > 0) || std::isinf(square)) return false;
    row[i] = std::sqrt(square);
  }
  return true;
}

}  // namespace eval
