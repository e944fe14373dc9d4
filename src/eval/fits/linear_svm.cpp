// SPDX-License-Identifier: Apache-2.0
#include "eval/fits/linear_svm.hpp"

#include <algorithm>
#include <cmath>

#include "base/fused.hpp"
#include "eval/class_metrics.hpp"
#include "eval/fits/dense.hpp"
#include "eval/fits/newton.hpp"

namespace eval {
namespace {

constexpr double kLengthOffset = 1e-5;
constexpr int64_t kFolds = 3;

// |w|^2 / 2 + sum of c max(0, 1 - t w.x)^2. Its second derivatives at w are I + sum of 2 c x x'
// over the rows with t w.x < 1.
class SquaredHinge : public Convex {
 public:
  SquaredHinge(std::span<const double> x, int64_t width, const std::vector<int64_t>& rows,
               const std::vector<char>& shows, double cost)
      : x_(x), width_(width), rows_(rows), shows_(shows), cost_(cost) {}

  int64_t size() const override { return width_; }
  double value(const std::vector<double>& w) override {
    double sum = dot(w.data(), w.data(), width_) / 2;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const double short_of = std::max(0.0, 1 - target(i) * dot(row(i), w.data(), width_));
      sum = base::fused(weight(i) * short_of, short_of, sum);
    }
    return sum;
  }
  double gradient(const std::vector<double>& w, std::vector<double>& g) override {
    double sum = dot(w.data(), w.data(), width_) / 2;
    g = w;
    active_.clear();
    for (size_t i = 0; i < rows_.size(); ++i) {
      const double short_of = 1 - target(i) * dot(row(i), w.data(), width_);
      if (short_of <= 0) continue;  // NaN is added to the sum, so that no fit ignores it
      active_.push_back(i);
      sum = base::fused(weight(i) * short_of, short_of, sum);
      add_scaled(g.data(), -2 * weight(i) * short_of * target(i), row(i), width_);
    }
    return sum;
  }
  void second(const std::vector<double>& v, std::vector<double>& out) override {
    out = v;
    for (size_t i : active_)
      add_scaled(out.data(), 2 * weight(i) * dot(row(i), v.data(), width_), row(i), width_);
  }
  void diagonal(std::vector<double>& out) override {
    std::fill(out.begin(), out.end(), 1.0);
    for (size_t i : active_)
      for (int64_t f = 0; f < width_; ++f)
        out[size_t(f)] = base::fused(2 * weight(i) * row(i)[f], row(i)[f], out[size_t(f)]);
  }

 private:
  const double* row(size_t i) const { return x_.data() + rows_[i] * width_; }
  bool shows(size_t i) const { return shows_[size_t(rows_[i])] != 0; }
  double target(size_t i) const { return shows(i) ? 1 : -1; }
  double weight(size_t i) const { return shows(i) ? 2 * cost_ : cost_; }

  std::span<const double> x_;
  int64_t width_;
  const std::vector<int64_t>& rows_;
  const std::vector<char>& shows_;
  double cost_;
  std::vector<size_t> active_;  // rows with a loss at the point of the last gradient
};

}  // namespace

void write_svm_rows(const float* x, int64_t rows, int64_t features, double* to) {
  for (int64_t i = 0; i < rows; ++i, x += features, to += features + 1) {
    const double length = std::sqrt(dot(x, x, features)) + kLengthOffset;
    for (int64_t f = 0; f < features; ++f) to[f] = double(x[f]) / length;
    to[features] = 1;
  }
}

std::vector<double> svm_rows(const float* x, int64_t rows, int64_t features) {
  std::vector<double> out(size_t(rows * (features + 1)));
  write_svm_rows(x, rows, features, out.data());
  return out;
}

std::vector<double> fit_svm(std::span<const double> x, int64_t width,
                            const std::vector<int64_t>& rows, const std::vector<char>& shows,
                            double cost) {
  SquaredHinge function(x, width, rows, shows, cost);
  return minimised(function);
}

// The published function sorts the rows by class, the class of row 0 first, and deals them to the
// folds in turn. This gives the number of rows of each class in each fold. A class's rows then go
// to the folds in their order.
std::vector<int64_t> stratified_folds(const std::vector<char>& shows, int64_t folds) {
  const auto n = int64_t(shows.size());
  const int64_t of_first = std::count(shows.begin(), shows.end(), n > 0 ? shows[0] : char{0});
  std::vector<int64_t> out(shows.size());
  for (const bool first : {true, false}) {
    int64_t fold = 0, left = 0;  // rows of this class that the fold still gets
    auto share = [&](int64_t f) {
      int64_t count = 0;
      for (int64_t place = f; place < n; place += folds) count += (place < of_first) == first;
      return count;
    };
    left = share(0);
    for (size_t i = 0; i < shows.size(); ++i) {
      if ((shows[i] == shows[0]) != first) continue;
      while (left == 0) left = share(++fold);
      out[i] = fold;
      --left;
    }
  }
  return out;
}

double cross_validated(std::span<const double> x, int64_t width, const std::vector<char>& shows,
                       double cost) {
  const std::vector<int64_t> folds = stratified_folds(shows, kFolds);
  double sum = 0;
  for (int64_t fold = 0; fold < kFolds; ++fold) {
    std::vector<int64_t> fitted;
    for (size_t i = 0; i < shows.size(); ++i)
      if (folds[i] != fold) fitted.push_back(int64_t(i));
    const std::vector<double> w = fit_svm(x, width, fitted, shows, cost);
    std::vector<double> scores;
    std::vector<float> targets;
    for (size_t i = 0; i < shows.size(); ++i) {
      if (folds[i] != fold) continue;
      scores.push_back(dot(x.data() + int64_t(i) * width, w.data(), width));
      targets.push_back(float(shows[i]));
    }
    sum += average_precision(scores.data(), targets.data(), int64_t(scores.size()),
                             Precision::of_each_recall)
               .value_or(0);
  }
  return sum / double(kFolds);
}

}  // namespace eval
