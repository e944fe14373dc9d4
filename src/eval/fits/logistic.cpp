// SPDX-License-Identifier: Apache-2.0
#include "eval/fits/logistic.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/elementary.hpp"
#include "base/fused.hpp"
#include "eval/fits/dense.hpp"
#include "eval/fits/newton.hpp"

namespace eval {
namespace {

constexpr int64_t kRowsOfPart = 32;  // they stay in the cache while all classes read them

// Sum over rows of -log softmax(W x)_label, plus strength / 2 * |W|^2 without the biases. W is
// [classes, width]. With p = softmax(W x) and u = V x, the second derivatives turn V into the sum
// of (p u - p (p.u)) x', plus strength V.
class CrossEntropy : public Convex {
 public:
  // x: [labels.size(), width]; the last feature is the constant 1.
  CrossEntropy(const std::vector<double>& x, const LabelledRows& rows, double strength, int threads)
      : x_(x),
        rows_(rows),
        width_(rows.features + 1),
        classes_(rows.classes),
        strength_(strength),
        threads_(threads) {}

  int64_t size() const override { return classes_ * width_; }
  double value(const std::vector<double>& w) override {
    std::vector<double> scores = products(w);
    return finish(scores, w);
  }
  double gradient(const std::vector<double>& w, std::vector<double>& g) override {
    probabilities_ = products(w);
    const double value = finish(probabilities_, w);
    std::vector<double> d = probabilities_;
    for (int64_t i = 0; i < count(); ++i) d[size_t(i * classes_ + rows_.labels[size_t(i)])] -= 1;
    add_up(d, w, g);
    return value;
  }
  void second(const std::vector<double>& v, std::vector<double>& out) override {
    std::vector<double> u = products(v);
    for_parts(threads_, count(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double* p = probabilities_.data() + i * classes_;
        double* of_row = u.data() + i * classes_;
        const double mean = dot(p, of_row, classes_);
        for (int64_t c = 0; c < classes_; ++c) of_row[c] = p[c] * (of_row[c] - mean);
      }
    });
    add_up(u, v, out);
  }
  void diagonal(std::vector<double>& out) override {
    std::fill(out.begin(), out.end(), strength_);
    for_parts(threads_, classes_, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < count(); ++i)
        for (int64_t c = begin; c < end; ++c) {
          const double p = probabilities_[size_t(i * classes_ + c)], scale = p * (1 - p);
          const double* x = row(i);
          double* to = out.data() + c * width_;
          for (int64_t f = 0; f < width_; ++f) to[f] = base::fused(scale * x[f], x[f], to[f]);
        }
    });
  }

 private:
  int64_t count() const { return int64_t(rows_.labels.size()); }
  const double* row(int64_t i) const { return x_.data() + i * width_; }

  // Returns x W': [rows, classes].
  std::vector<double> products(const std::vector<double>& w) const {
    std::vector<double> out(size_t(count() * classes_));
    for_parts(threads_, count(), [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; part += kRowsOfPart)
        for (int64_t c = 0; c < classes_; ++c)
          for (int64_t i = part; i < std::min(part + kRowsOfPart, end); ++i)
            out[size_t(i * classes_ + c)] = dot(row(i), w.data() + c * width_, width_);
    });
    return out;
  }
  // out = d' x + strength * w without the biases: [classes, width].
  void add_up(const std::vector<double>& d, const std::vector<double>& w,
              std::vector<double>& out) const {
    for_parts(threads_, classes_, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        for (int64_t f = 0; f < width_; ++f)
          out[size_t(c * width_ + f)] = strength_ * w[size_t(c * width_ + f)];
        out[size_t((c + 1) * width_ - 1)] = 0;
      }
      for (int64_t part = 0; part < count(); part += kRowsOfPart)
        for (int64_t c = begin; c < end; ++c)
          for (int64_t i = part; i < std::min(part + kRowsOfPart, count()); ++i)
            add_scaled(out.data() + c * width_, d[size_t(i * classes_ + c)], row(i), width_);
    });
  }
  // Replaces scores by probabilities; returns the value.
  double finish(std::vector<double>& scores, const std::vector<double>& w) const {
    std::vector<double> losses(rows_.labels.size());
    for_parts(threads_, count(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double* s = scores.data() + i * classes_;
        const double most = *std::max_element(s, s + classes_), own = s[rows_.labels[size_t(i)]];
        double sum = 0;
        for (int64_t c = 0; c < classes_; ++c) sum += s[c] = base::math::exp(s[c] - most);
        for (int64_t c = 0; c < classes_; ++c) s[c] /= sum;
        losses[size_t(i)] = base::math::log(sum) + most - own;
      }
    });
    double total = 0;
    for (double loss : losses) total += loss;
    for (int64_t c = 0; c < classes_; ++c)
      total = base::fused(strength_ / 2,
                          dot(w.data() + c * width_, w.data() + c * width_, width_ - 1), total);
    return total;
  }

  const std::vector<double>& x_;
  const LabelledRows& rows_;
  int64_t width_, classes_;
  double strength_;
  int threads_;
  std::vector<double> probabilities_;  // at the point of the last gradient
};

}  // namespace

int64_t LogisticProbe::predict(const float* x, std::vector<double>& standard) const {
  const int64_t features = int64_t(mean.size()), width = features + 1;
  standard.assign(size_t(width), 1.0);
  for (int64_t f = 0; f < features; ++f)
    standard[size_t(f)] = (double(x[f]) - mean[size_t(f)]) / deviation[size_t(f)];
  int64_t best = 0;
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t c = 0; c * width < int64_t(weights.size()); ++c) {
    const double score = dot(standard.data(), weights.data() + c * width, width);
    if (!std::isfinite(score)) return -1;
    if (score > most) best = c;
    most = std::max(most, score);
  }
  return best;
}

LogisticProbe fit_logistic(const LabelledRows& rows, double l2, int threads) {
  constexpr double kFlatDeviation = 10 * std::numeric_limits<double>::epsilon();
  const int64_t n = int64_t(rows.labels.size()), features = rows.features;
  LogisticProbe probe{
      std::vector<double>(size_t(features), 0.0), std::vector<double>(size_t(features), 0.0), {}};
  for (int64_t i = 0; i < n; ++i) add_scaled(probe.mean.data(), 1, rows.x + i * features, features);
  for (double& m : probe.mean) m /= double(n);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t f = 0; f < features; ++f) {
      const double d = double(rows.x[i * features + f]) - probe.mean[size_t(f)];
      probe.deviation[size_t(f)] = base::fused(d, d, probe.deviation[size_t(f)]);
    }
  for (double& d : probe.deviation) {
    d = std::sqrt(d / double(n));
    if (d < kFlatDeviation) d = 1;
  }
  std::vector<double> x(size_t(n * (features + 1)), 1.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t f = 0; f < features; ++f)
      x[size_t(i * (features + 1) + f)] =
          (double(rows.x[i * features + f]) - probe.mean[size_t(f)]) / probe.deviation[size_t(f)];
  CrossEntropy function(x, rows, l2 / double(n), threads);
  probe.weights = minimised(function);
  return probe;
}

}  // namespace eval
