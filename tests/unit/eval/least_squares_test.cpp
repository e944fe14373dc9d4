// SPDX-License-Identifier: Apache-2.0
// Tests linear probes against solutions by hand, the condition that defines the solution, and
// NumPy's choice of rows.
#include "eval/fits/least_squares.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/random.hpp"

namespace {

struct ProbeData {
  std::vector<float> x;
  eval::LabelledRows rows;
  ProbeData(std::vector<float> values, int64_t features, std::vector<int32_t> labels,
            int64_t classes)
      : x(std::move(values)), rows{x.data(), features, std::move(labels), classes} {}
  ProbeData(const ProbeData&) = delete;
};

// Makes classes with different means; every number is a pure function of its place.
ProbeData made_rows(int64_t rows, int64_t features, int64_t classes) {
  base::Stream s(17, "probe");
  std::vector<float> x;
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < rows; ++i) {
    labels.push_back(int32_t(s.sub(0).bits(uint64_t(i)) % uint32_t(classes)));
    for (int64_t f = 0; f < features; ++f)
      x.push_back(float(3 + 0.2 * double(f) * s.sub(1).normal(uint64_t(i * features + f)) +
                        0.7 * s.sub(2).normal(uint64_t(labels.back() * features + f))));
  }
  return {std::move(x), features, std::move(labels), classes};
}

std::vector<int64_t> all_of(const ProbeData& data) {
  std::vector<int64_t> rows;
  for (size_t i = 0; i < data.rows.labels.size(); ++i) rows.push_back(int64_t(i));
  return rows;
}

// Features 0, 0, 3 have mean 1 and standard deviation d = sqrt(2); they become -1/d, -1/d, 2/d.
// With the constant feature, X'X has the diagonal 6 / d^2, 30000 and zeros elsewhere. X'Y of class
// 0 is -4/d, 100.
TEST(LinearProbe, HasTheWeightsOfAHandSolution) {
  const ProbeData data({0, 0, 3}, 1, {0, 0, 1}, 2);
  const double d = std::sqrt(2.0) + 1e-5, l2 = 16;
  const eval::LinearProbe probe = eval::fit_probes(data.rows, {0, 1, 2}, {l2})[0];
  EXPECT_DOUBLE_EQ(probe.mean[0], 1);
  EXPECT_DOUBLE_EQ(probe.deviation[0], d);
  const double feature = -4 / d / (6 / (d * d) + l2), bias = 100 / (30000 + l2);
  const double want[] = {feature, -feature, bias, -bias};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(probe.weights[i], want[i], 1e-15) << i;
  std::vector<double> scores;
  const float x = 2;
  probe.score(&x, scores);
  EXPECT_NEAR(scores[0], feature / d + 100 * bias, 1e-12);
  EXPECT_NEAR(scores[1], -scores[0], 1e-12);
  EXPECT_EQ(probe.predict(&x, scores), 0) << "the larger class, because l2 is strong";
  const float far = 9;
  EXPECT_EQ(probe.predict(&far, scores), 1);
}

// W is the solution exactly if X'(Y - X W) = l2 W. Fewer rows than features take the other form of
// the solution.
TEST(LinearProbe, SolvesTheEquationsThatDefineIt) {
  for (int64_t rows : {1, 2, 7, 19, 20, 21, 64}) {
    const int64_t features = 19, classes = 3, width = features + 1;
    const ProbeData data = made_rows(rows, features, classes);
    const std::vector<double> strengths = {0.5, 1024};
    const auto probes = eval::fit_probes(data.rows, all_of(data), strengths);
    for (size_t s = 0; s < strengths.size(); ++s) {
      const eval::LinearProbe& probe = probes[s];
      ASSERT_EQ(int64_t(probe.weights.size()), width * classes);
      std::vector<long double> z;  // standardised rows
      for (int64_t f = 0; f < features; ++f) {
        long double mean = 0, square = 0;
        for (int64_t i = 0; i < rows; ++i) mean += data.x[size_t(i * features + f)];
        mean /= rows;
        for (int64_t i = 0; i < rows; ++i)
          square += std::pow(data.x[size_t(i * features + f)] - mean, 2.0L);
        z.resize(size_t(rows * width), 100.0L);
        for (int64_t i = 0; i < rows; ++i)
          z[size_t(i * width + f)] =
              (data.x[size_t(i * features + f)] - mean) / (std::sqrt(square / rows) + 1e-5L);
      }
      for (int64_t c = 0; c < classes; ++c) {
        std::vector<long double> rest;  // Y - X W of this class
        for (int64_t i = 0; i < rows; ++i) {
          rest.push_back(data.rows.labels[size_t(i)] == c ? 1 : -1);
          for (int64_t f = 0; f < width; ++f)
            rest.back() -= z[size_t(i * width + f)] * probe.weights[size_t(f * classes + c)];
        }
        for (int64_t f = 0; f < width; ++f) {
          long double left = 0;
          for (int64_t i = 0; i < rows; ++i) left += z[size_t(i * width + f)] * rest[size_t(i)];
          EXPECT_NEAR(double(left), strengths[s] * probe.weights[size_t(f * classes + c)], 2e-8)
              << rows << " rows, l2 " << strengths[s] << ", class " << c << ", feature " << f;
        }
      }
    }
  }
}

// default_rng(seed).permutation(np.where(labels == c)[0]) for c = 0, 1, 2, 3 in NumPy 1.24.2
TEST(LinearProbe, ChoosesTheRowsThatNumPyChooses) {
  const ProbeData data(std::vector<float>(14), 1, {0, 3, 0, 1, 1, 0, 3, 0, 1, 0, 3, 3, 0, 1}, 4);
  const std::vector<std::vector<int64_t>>
      want0 = {{7, 5, 12, 9, 0, 2}, {4, 13, 3, 8}, {}, {1, 10, 11, 6}},
      want7 = {{12, 5, 0, 9, 2, 7}, {3, 4, 8, 13}, {}, {10, 1, 11, 6}};
  EXPECT_EQ(eval::permuted_rows(data.rows, 0), want0);
  EXPECT_EQ(eval::permuted_rows(data.rows, 7), want7);
  EXPECT_EQ(eval::first_of_each(want0, 2), (std::vector<int64_t>{7, 5, 4, 13, 1, 10}));
  EXPECT_EQ(eval::first_of_each(want0, 100).size(), 14u) << "smaller classes give all";
}

// The choice is repeated with the rows that the rule names: of 10 to 12 shots the last 2, of a
// class of 7 rows the last 1, of a class of 1 row none.
TEST(LinearProbe, TheSweepTakesTheBestOnHeldOutRows) {
  std::set<size_t> chosen;
  const std::vector<double> strengths = {1e-3, 30, 1e6};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    base::Stream s(seed, "sweep");
    std::vector<float> x;
    std::vector<int32_t> labels;
    for (int32_t c : {0, 1, 2})
      for (int64_t i = 0; i < (c == 0 ? 12 : c == 1 ? 7 : 1); ++i) {
        for (int64_t f = 0; f < 6; ++f)
          x.push_back(float(s.normal(x.size()) + 0.15 * double(seed % 8) * double(c == 1)));
        labels.push_back(c);
      }
    const ProbeData data(std::move(x), 6, std::move(labels), 3);
    const auto rows = eval::permuted_rows(data.rows, seed);
    const auto shots = size_t(10 + seed % 3);
    std::vector<int64_t> fitted(rows[0].begin(), rows[0].begin() + int64_t(shots) - 2);
    fitted.insert(fitted.end(), rows[1].begin(), rows[1].begin() + 6);
    fitted.push_back(rows[2][0]);
    const std::vector<int64_t> held_out = {rows[0][shots - 2], rows[0][shots - 1], rows[1][6]};
    size_t best = 0;
    int64_t most = -1;
    std::vector<double> scores;
    for (size_t l = 0; l < strengths.size(); ++l) {
      const eval::LinearProbe probe = eval::fit_probes(data.rows, fitted, {strengths[l]})[0];
      int64_t hits = 0;
      for (int64_t row : held_out)
        hits += probe.predict(data.x.data() + row * 6, scores) == data.rows.labels[size_t(row)];
      if (hits > most) best = l;
      most = std::max(most, hits);
    }
    EXPECT_EQ(eval::choose_l2(data.rows, rows, int64_t(shots), strengths), best) << "seed " << seed;
    chosen.insert(best);
  }
  EXPECT_EQ(chosen.size(), strengths.size()) << "each strength is the best one for some data";
}

TEST(LinearProbe, WithoutHeldOutRowsTheFirstStrengthIsTaken) {
  const ProbeData data = made_rows(12, 3, 2);
  const auto rows = eval::permuted_rows(data.rows, 1);
  EXPECT_EQ(eval::choose_l2(data.rows, rows, 1, {4, 1, 2}), 0u);
}

TEST(LinearProbe, FeaturesThatAreNotFiniteHaveNoClass) {
  ProbeData data = made_rows(12, 3, 2);
  std::vector<double> scores;
  const eval::LinearProbe good = eval::fit_probes(data.rows, all_of(data), {1})[0];
  EXPECT_GE(good.predict(data.x.data(), scores), 0);
  data.x[4] = NAN;
  const eval::LinearProbe bad = eval::fit_probes(data.rows, all_of(data), {1})[0];
  EXPECT_EQ(bad.predict(data.x.data(), scores), -1);
  EXPECT_EQ(good.predict(data.x.data() + 3, scores), -1);
}

}  // namespace
