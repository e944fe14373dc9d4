// SPDX-License-Identifier: Apache-2.0
#include "eval/fits/least_squares.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "base/fused.hpp"
#include "base/numpy_random.hpp"
#include "eval/fits/dense.hpp"
#include "eval/fits/symmetric.hpp"

namespace eval {
namespace {

constexpr double kConstant = 100;  // the feature that takes the place of a bias
constexpr double kLeastDeviation = 1e-5;

// Returns the lower triangle of A A' in row-major order; A is [rows, columns]. The upper triangle
// is zero.
std::vector<double> products_of_rows(const std::vector<double>& a, int64_t rows, int64_t columns) {
  constexpr int64_t kPart = 256;  // columns; all rows of a part stay in the cache
  std::vector<double> out(size_t(rows * rows), 0.0);
  for (int64_t c = 0; c < columns; c += kPart)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j <= i; ++j)
        out[size_t(i * rows + j)] += dot(a.data() + i * columns + c, a.data() + j * columns + c,
                                         std::min(kPart, columns - c));
  return out;
}

// Replaces b [n, columns] by the solution of L L' x = b.
void solve_factorised(const std::vector<double>& l, int64_t n, std::vector<double>& b,
                      int64_t columns) {
  constexpr int64_t kPart = 128;  // columns; all rows of a part stay in the cache
  for (int64_t c = 0; c < columns; c += kPart) {
    const int64_t width = std::min(kPart, columns - c);
    auto row = [&](int64_t i) { return b.data() + i * columns + c; };
    auto divide = [&](int64_t i) {
      for (int64_t k = 0; k < width; ++k) row(i)[k] /= l[size_t(i * n + i)];
    };
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < i; ++k) add_scaled(row(i), -l[size_t(i * n + k)], row(k), width);
      divide(i);
    }
    for (int64_t i = n; i-- > 0;) {
      for (int64_t k = i + 1; k < n; ++k) add_scaled(row(i), -l[size_t(k * n + i)], row(k), width);
      divide(i);
    }
  }
}

// The rows of a fit, as matrices in row-major order.
struct ProbeRows {
  std::vector<double> mean, deviation;  // [features]
  std::vector<double> by_row;           // X: [rows, features + 1]
  std::vector<double> by_feature;       // X': [features + 1, rows]
};

ProbeRows standardised(const LabelledRows& data, const std::vector<int64_t>& rows) {
  const int64_t width = data.features, n = int64_t(rows.size());
  ProbeRows p{std::vector<double>(size_t(width), 0.0), std::vector<double>(size_t(width), 0.0),
              std::vector<double>(size_t(n * (width + 1))),
              std::vector<double>(size_t(n * (width + 1)))};
  for (int64_t row : rows)
    for (int64_t f = 0; f < width; ++f) p.mean[size_t(f)] += double(data.x[row * width + f]);
  for (double& m : p.mean) m /= double(n);
  for (int64_t row : rows)
    for (int64_t f = 0; f < width; ++f) {
      const double d = double(data.x[row * width + f]) - p.mean[size_t(f)];
      p.deviation[size_t(f)] = base::fused(d, d, p.deviation[size_t(f)]);
    }
  for (double& d : p.deviation) d = std::sqrt(d / double(n)) + kLeastDeviation;
  for (int64_t i = 0; i < n; ++i) {
    double* out = p.by_row.data() + i * (width + 1);
    const float* x = data.x + rows[size_t(i)] * width;
    for (int64_t f = 0; f < width; ++f)
      out[f] = (double(x[f]) - p.mean[size_t(f)]) / p.deviation[size_t(f)];
    out[width] = kConstant;
    for (int64_t f = 0; f <= width; ++f) p.by_feature[size_t(f * n + i)] = out[f];
  }
  return p;
}

// Returns Y [rows, classes]: 1 at the own class, -1 elsewhere.
std::vector<double> probe_targets(const LabelledRows& data, const std::vector<int64_t>& rows) {
  std::vector<double> y(rows.size() * size_t(data.classes), -1.0);
  for (size_t i = 0; i < rows.size(); ++i)
    y[i * size_t(data.classes) + size_t(data.labels[size_t(rows[i])])] = 1;
  return y;
}

// Returns X'Y [features + 1, classes]: twice the sum over the rows of the class, minus the sum over
// all rows.
std::vector<double> products_with_targets(const LabelledRows& data,
                                          const std::vector<int64_t>& rows, const ProbeRows& p) {
  const int64_t width = data.features + 1, classes = data.classes;
  std::vector<double> out(size_t(width * classes), 0.0), all(size_t(width), 0.0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double* x = p.by_row.data() + int64_t(i) * width;
    double* of_class = out.data() + data.labels[size_t(rows[i])];
    for (int64_t f = 0; f < width; ++f) of_class[f * classes] += x[f];
    add_scaled(all.data(), 1, x, width);
  }
  for (int64_t f = 0; f < width; ++f)
    for (int64_t c = 0; c < classes; ++c)
      out[size_t(f * classes + c)] = 2 * out[size_t(f * classes + c)] - all[size_t(f)];
  return out;
}

// Returns A' B: [m, columns] of A [n, m] and B [n, columns].
std::vector<double> transposed_product(const std::vector<double>& a, int64_t n, int64_t m,
                                       const std::vector<double>& b, int64_t columns) {
  std::vector<double> out(size_t(m * columns), 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t f = 0; f < m; ++f)
      add_scaled(out.data() + f * columns, a[size_t(i * m + f)], b.data() + i * columns, columns);
  return out;
}

}  // namespace

std::vector<std::vector<int64_t>> permuted_rows(const LabelledRows& data, uint64_t seed) {
  std::vector<std::vector<int64_t>> rows(size_t(data.classes));
  for (size_t i = 0; i < data.labels.size(); ++i)
    rows[size_t(data.labels[i])].push_back(int64_t(i));
  base::NumpyRandom random(seed);
  for (std::vector<int64_t>& of_class : rows) random.shuffle(of_class);
  return rows;
}

std::vector<int64_t> first_of_each(const std::vector<std::vector<int64_t>>& rows, int64_t shots) {
  std::vector<int64_t> out;
  for (const std::vector<int64_t>& of_class : rows)
    out.insert(out.end(), of_class.begin(),
               of_class.begin() + std::min(shots, int64_t(of_class.size())));
  return out;
}

void LinearProbe::score(const float* x, std::vector<double>& scores) const {
  const int64_t width = features(), count = classes();
  const double* bias = weights.data() + width * count;
  scores.resize(size_t(count));
  for (int64_t c = 0; c < count; ++c) scores[size_t(c)] = kConstant * bias[c];
  for (int64_t f = 0; f < width; ++f)
    add_scaled(scores.data(), (double(x[f]) - mean[size_t(f)]) / deviation[size_t(f)],
               weights.data() + f * count, count);
}

int64_t LinearProbe::predict(const float* x, std::vector<double>& scores) const {
  score(x, scores);
  for (double s : scores)
    if (!std::isfinite(s)) return -1;
  return std::max_element(scores.begin(), scores.end()) - scores.begin();
}

std::vector<LinearProbe> fit_probes(const LabelledRows& data, const std::vector<int64_t>& rows,
                                    const std::vector<double>& l2) {
  CHECK(!rows.empty() && data.classes > 0);
  const int64_t n = int64_t(rows.size()), width = data.features + 1, classes = data.classes;
  const ProbeRows p = standardised(data, rows);
  const bool dual = n < width;  // the smaller of X'X and XX' is solved
  const int64_t size = dual ? n : width;
  const std::vector<double> products =
      dual ? products_of_rows(p.by_row, n, width) : products_of_rows(p.by_feature, width, n);
  const std::vector<double> right =
      dual ? probe_targets(data, rows) : products_with_targets(data, rows, p);
  std::vector<LinearProbe> probes;
  for (double strength : l2) {
    std::vector<double> matrix = products, solution = right;
    for (int64_t i = 0; i < size; ++i) matrix[size_t(i * size + i)] += strength;
    LinearProbe& probe = probes.emplace_back(LinearProbe{p.mean, p.deviation, {}});
    if (!factorise(matrix, size)) {
      probe.weights.assign(size_t(width * classes), std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    solve_factorised(matrix, size, solution, classes);
    probe.weights = dual ? transposed_product(p.by_row, n, width, solution, classes) : solution;
  }
  return probes;
}

size_t choose_l2(const LabelledRows& data, const std::vector<std::vector<int64_t>>& rows,
                 int64_t shots, const std::vector<double>& l2) {
  std::vector<int64_t> fitted, held_out;
  for (const std::vector<int64_t>& of_class : rows) {
    const int64_t chosen = std::min(shots, int64_t(of_class.size()));
    const int64_t out = chosen < 2 ? 0 : std::max<int64_t>(1, chosen / 5);
    const auto end = of_class.begin() + chosen;
    fitted.insert(fitted.end(), of_class.begin(), end - out);
    held_out.insert(held_out.end(), end - out, end);
  }
  if (held_out.empty() || l2.size() < 2) return 0;
  const std::vector<LinearProbe> probes = fit_probes(data, fitted, l2);
  std::vector<double> scores;
  size_t best = 0;
  int64_t most = -1;
  for (size_t i = 0; i < l2.size(); ++i) {
    int64_t hits = 0;
    for (int64_t row : held_out)
      hits += probes[i].predict(data.x + row * data.features, scores) ==
              int64_t(data.labels[size_t(row)]);
    if (hits > most) best = i;
    most = std::max(most, hits);
  }
  return best;
}

}  // namespace eval
