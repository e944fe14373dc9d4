// SPDX-License-Identifier: Apache-2.0
// Tests votes of nearest neighbours against a plain sort of all similarities.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.hpp"
#include "eval/features/neighbours.hpp"
#include "feature_rig.hpp"

namespace knn {

using feature_rig::Images;
using feature_rig::kClasses;
using feature_rig::kWidth;
using Values = std::vector<std::pair<std::string, double>>;

// Returns the share of test images whose class is among the first `top`, step by step from the
// published formulas.
double accuracy(const Images& train, const Images& test, size_t k, double temperature,
                bool normalise, int top) {
  auto length = [&](const Images& images, int64_t i) {
    long double sum = 0;
    for (int64_t f = 0; f < kWidth; ++f)
      sum += (long double)(images.feature_of(i, f)) * (long double)(images.feature_of(i, f));
    return normalise ? std::sqrt(sum) : 1.0L;
  };
  int64_t hits = 0;
  for (int64_t i = 0; i < test.size; ++i) {
    std::vector<std::pair<long double, int64_t>> rows;
    for (int64_t r = 0; r < train.size; ++r) {
      long double product = 0;
      for (int64_t f = 0; f < kWidth; ++f)
        product += (long double)(test.feature_of(i, f)) * (long double)(train.feature_of(r, f));
      rows.emplace_back(product / length(test, i) / length(train, r), r);
    }
    std::sort(rows.rbegin(), rows.rend());
    long double votes[kClasses] = {};
    for (size_t j = 0; j < k; ++j)
      votes[train.label_of(rows[j].second)] += std::exp(rows[j].first / (long double)(temperature));
    int before = 0;
    const int32_t own = test.label_of(i);
    for (int32_t c = 0; c < kClasses; ++c)
      before += votes[c] > votes[own] || (votes[c] == votes[own] && c < own);
    hits += before < top;
  }
  return double(hits) / double(test.size);
}

TEST(Knn, AccuraciesAreThoseOfThePublishedFormulas) {
  const Images train{"few", 90}, test{"val", 211, 2};
  for (const auto& [temperature, normalise] : {std::pair{0.07, true}, {0.5, false}}) {
    const eval::Result result = feature_rig::evaluate(
        "knn",
        {.train = 90,
         .test = 211,
         .keys = fmt::format("k = [1, 7, 90]\ntop = [1, 2]\ntemperature = {}\nnormalise = {}",
                             temperature, normalise)})[0];
    Values want;
    for (int k : {1, 7, 90})
      for (int top : {1, 2})
        want.emplace_back(fmt::format("k{}_top{}", k, top),
                          accuracy(train, test, size_t(k), temperature, normalise, top));
    EXPECT_EQ(result.values, want);
    EXPECT_GT(want[2].second, 0.5) << "features tell classes apart; chance is 1 / 3";
    EXPECT_LT(want[2].second, 0.99) << "no accuracy is perfect, or errors would not show";
  }
}

TEST(Knn, LargeProductsDoNotOverflow) {
  const std::vector<float> x = {1000, 0, 999, 0, 0, 1000};
  const eval::LabelledRows rows{x.data(), 2, {2, 0, 1}, 3};
  const float image[] = {1000, 1};
  const auto found = eval::NeighbourSearch(rows, false).find(image, 1, 3, 1);
  ASSERT_EQ(found[0].size(), 3u);
  EXPECT_EQ(found[0][0].row, 0);
  const std::vector<double> scores = eval::vote(rows, found[0], 3, 0.1);
  EXPECT_EQ(scores, (std::vector<double>{0, 0, 1})) << "exp(1e7) has no number";
  EXPECT_EQ(eval::place_of(scores, 2), 0);
  EXPECT_EQ(eval::place_of(scores, 1), 2) << "among equal scores the first class comes first";
  EXPECT_EQ(eval::place_of(scores, 3), INFINITY);
}

TEST(Knn, EqualSimilaritiesTakeTheFirstRows) {
  const std::vector<float> x(12, 1.0f);
  const eval::LabelledRows rows{x.data(), 2, {0, 1, 2, 0, 1, 2}, 3};
  const float images[] = {1, 1, 2, 2};
  for (const auto& of_image : eval::NeighbourSearch(rows, true).find(images, 2, 4, 2)) {
    std::vector<int64_t> found;
    for (const eval::Neighbour& n : of_image) found.push_back(n.row);
    EXPECT_EQ(found, (std::vector<int64_t>{0, 1, 2, 3}));
  }
}

// Eight sums of products, one after the other, as the published evaluations were made.
double product(const float* a, const float* b, int64_t n) {
  double sums[8] = {};
  for (int64_t i = 0; i < n; ++i) sums[i % 8] = std::fma(double(a[i]), double(b[i]), sums[i % 8]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

TEST(Knn, SimilaritiesHaveTheBitsOfSingleProducts) {
  constexpr int64_t kRows = 101, kFound = 7;  // no multiples of what is computed together
  for (int64_t width : {1, 8, 13, 64})
    for (int64_t images : {1, 2, 5}) {
      const base::Stream random(7, "similarities");
      std::vector<float> x(size_t(kRows * width)), tests(size_t(images * width));
      for (size_t i = 0; i < x.size(); ++i) x[i] = random.uniform(i) - 0.5f;
      for (size_t i = 0; i < tests.size(); ++i) tests[i] = random.uniform(x.size() + i) - 0.5f;
      const eval::LabelledRows rows{x.data(), width, std::vector<int32_t>(size_t(kRows), 0), 1};
      for (int threads : {1, 3}) {
        const auto found =
            eval::NeighbourSearch(rows, true).find(tests.data(), images, kFound, threads);
        for (int64_t i = 0; i < images; ++i) {
          auto inverse = [&](const float* of) {
            return 1 / std::max(std::sqrt(product(of, of, width)), 1e-12);
          };
          const float* image = tests.data() + i * width;
          std::vector<std::pair<double, int64_t>> all;
          for (int64_t r = 0; r < kRows; ++r) {
            const float* row = x.data() + r * width;
            all.emplace_back(-(product(image, row, width) * inverse(image) * inverse(row)), r);
          }
          std::sort(all.begin(), all.end());
          for (size_t j = 0; j < size_t(kFound); ++j) {
            EXPECT_EQ(found[size_t(i)][j].similarity, -all[j].first) << width << " " << images;
            EXPECT_EQ(found[size_t(i)][j].row, all[j].second) << width << " " << images;
          }
        }
      }
    }
}

TEST(Knn, NeedsEnoughImages) {
  const auto evaluator = eval::make_evaluator(feature_rig::options("knn", "k = [4, 20]"));
  evaluator->check(feature_rig::data_set({"few", 20}));
  evaluator->check(feature_rig::data_set({"val", 1}));
  for (const Images& images : {Images{"few", 19}, Images{"val", 0}})
    EXPECT_THROW(evaluator->check(feature_rig::data_set(images)), base::Error) << images.name;
}

}  // namespace knn
