// SPDX-License-Identifier: Apache-2.0
// LiDAR (arXiv 2312.04000; ssl.md 8): the effective rank of linear discriminant analysis, where an
// image is a class and its views are the members. It needs no labels. Views are passes over `data`,
// whose random ops draw anew in each.
#include <cmath>
#include <limits>

#include "eval/features/rank_method.hpp"
#include "eval/fits/symmetric.hpp"

namespace eval {
namespace {

struct Lidar : RankMethod {
  int64_t views = 10;
  double delta = 1e-4;

  std::vector<double> means;  // of the views of each image: [images, features]

  void bind(config::Table& t) override;
  Words words() const override { return {"lidar", "an effective rank", "", "blocks of products"}; }
  std::vector<Metric> metrics() const override {
    return {{"lidar", "1",
             "exponential of the entropy of the eigenvalues of linear discriminant analysis: "
             "differences between images over differences between the views of an image"}};
  }
  void check(const data::Dataset& set) const override;

  int64_t passes() const override { return views; }
  std::string test_stage() const override { return "views"; }
  Size begin() override;
  const double* centre_of(int64_t row) const override {
    return means.data() + row % images() * test.features;
  }
  std::vector<double> score(const std::vector<double>&) const override;

 private:
  std::vector<double> whitened(const std::vector<double>& factor) const;
};

void Lidar::bind(config::Table& t) {
  const auto may = config::OnResume::may_change;
  t.key("views", views,
        "views of each image: `data` is read this many times, and its random ops draw anew each "
        "time")
      .min(2)
      .max(1000)
      .on_resume(may);
  t.key("delta", delta,
        "added to the variance of each feature over the views of an image; published code takes "
        "1e-4")
      .above(0)
      .on_resume(may);
  bind_tap(t);
}

void Lidar::check(const data::Dataset& set) const {
  RankMethod::check(set);
  if (set.size() < 2)
    base::fail(base::Exit::data, "[data.{}] holds 1 image, but an effective rank needs at least 2",
               set.name());
}

Lidar::Size Lidar::begin() {
  const int64_t width = test.features;
  need_feature_memory(*context, context->dataset, "views, ",
                      2 * images() * width * int64_t(sizeof(double)));
  means.assign(size_t(images() * width), 0.0);
  for (int64_t i = 0; i < images(); ++i) {
    double* mean = means.data() + i * width;
    for (int64_t v = 0; v < views; ++v) add_scaled(mean, 1, test.row(v * images() + i), width);
    for (int64_t f = 0; f < width; ++f) mean[f] /= double(views);
  }
  return RankMethod::begin();
}

// Returns L^-1 (mean of an image - mean of all), for each image: [images, features].
std::vector<double> Lidar::whitened(const std::vector<double>& factor) const {
  const int64_t width = test.features, n = images();
  std::vector<double> mean(size_t(width), 0.0), out = means;
  for (int64_t i = 0; i < n; ++i) add_scaled(mean.data(), 1, means.data() + i * width, width);
  for (double& v : mean) v /= double(n);
  for_parts(context->threads, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double* x = out.data() + i * width;
      for (int64_t f = 0; f < width; ++f) {
        const double* row = factor.data() + f * width;
        x[f] = (x[f] - mean[size_t(f)] - dot(row, x, f)) / row[f];
      }
    }
  });
  return out;
}

// B is the covariance of the means, W = L L' the covariance of the views. W^-1/2 B W^-1/2 and L^-1
// B L'^-1 have equal eigenvalues.
std::vector<double> Lidar::score(const std::vector<double>&) const {
  const int64_t width = test.features, n = images();
  std::vector<double> matrix = products;
  double variance = 0;  // of views, over all features
  for (double& v : matrix) v /= double(n * (views - 1));
  for (int64_t f = 0; f < width; ++f) {
    variance += matrix[size_t(f * (width + 1))];
    matrix[size_t(f * (width + 1))] += delta;
  }
  if (!factorise(matrix, width)) return {std::numeric_limits<double>::quiet_NaN()};
  const std::vector<double> x = whitened(matrix);
  auto read = [&](int64_t i, int64_t begin, int64_t end, double* to) {
    std::copy_n(x.data() + i * width + begin, end - begin, to);
  };
  std::ranges::fill(matrix, 0.0);
  for (int64_t first = 0; first < width; first += kRowsOfBlock)
    add_products(n, width, first, context->threads, read, matrix.data() + first * width);
  mirror(matrix, width);
  std::vector<double> values = symmetric_eigenvalues(matrix, width, context->threads);
  for (double& v : values) v = std::max(v, 0.0);
  if (variance == 0 && values.back() > 0)
    throw base::Error(base::Exit::data,
                      fmt::format("[data.{}]: the {} views of each image have equal features; its "
                                  "preprocess needs random ops, such as random_resized_crop",
                                  context->dataset.name(), views),
                      true);
  return {effective_rank(values)};
}

}  // namespace

Registered lidar_row() {
  return feature_row<Lidar>(
      "effective rank of linear discriminant analysis on views of the images, without labels");
}

}  // namespace eval
