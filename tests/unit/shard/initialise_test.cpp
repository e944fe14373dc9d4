// SPDX-License-Identifier: Apache-2.0
// Tests initial values: the distributions of cappa.md 1.7, and that no split of a tensor changes
// them.
#include "shard/initialise.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace {

using shard::Init;
using shard::Parameter;

Parameter tensor(const std::string& path, int64_t count, Init init) {
  return {.path = path, .shape = {count}, .init = init, .size = count};
}

std::vector<float> values(const Parameter& p, uint64_t seed = 1) {
  std::vector<float> out(size_t(p.count()), -7.0f);
  shard::initial_values(p, seed, 0, p.count(), out.data());
  return out;
}

struct Statistics {
  double mean, std, kurtosis, least, most;
};
Statistics of(const std::vector<float>& x) {
  double n = double(x.size()), mean = 0, m2 = 0, m4 = 0;
  for (float v : x) mean += double(v) / n;
  for (float v : x) {
    double d = double(v) - mean;
    m2 += d * d / n;
    m4 += d * d * d * d / n;
  }
  return {mean, std::sqrt(m2), m4 / (m2 * m2), double(*std::min_element(x.begin(), x.end())),
          double(*std::max_element(x.begin(), x.end()))};
}

constexpr int64_t kMany = 200000;
const Init kNormal{.kind = Init::Kind::normal, .std = 0.0360844};
const Init kLecun{.kind = Init::Kind::lecun_normal, .fan_in = 768};
const Init kUniform{.kind = Init::Kind::uniform, .value = 0.25};
const Init kUnitRows{.kind = Init::Kind::normal, .std = 1, .unit_rows = true};
const Init kXavier{.kind = Init::Kind::xavier_uniform, .fan_in = 768, .fan_out = 3072};

TEST(Initialise, Constants) {
  for (float v : values(tensor("a", 1000, {}))) ASSERT_EQ(v, 0);
  for (float v : values(tensor("a", 1000, {.kind = Init::Kind::ones}))) ASSERT_EQ(v, 1);
  for (float v : values(tensor("a", 1000, {.kind = Init::Kind::constant, .value = -4.6})))
    ASSERT_EQ(v, -4.6f);
}

TEST(Initialise, Normal) {
  Statistics s = of(values(tensor("positions", kMany, kNormal)));
  EXPECT_NEAR(s.mean, 0, 0.01 * 0.0360844);
  EXPECT_NEAR(s.std, 0.0360844, 0.0360844 * 0.007);
  EXPECT_NEAR(s.kurtosis, 3, 0.05);
  EXPECT_GT(s.most, 4 * 0.0360844);  // not truncated
  EXPECT_LT(s.least, -4 * 0.0360844);
  // MLP biases have tiny values, and the embedding has wide ones.
  EXPECT_NEAR(of(values(tensor("bias", kMany, {.kind = Init::Kind::normal, .std = 1e-6}))).std,
              1e-6, 1e-8);
  EXPECT_NEAR(of(values(tensor("embedding", kMany, {.kind = Init::Kind::normal, .std = 1}))).std, 1,
              0.007);
}

TEST(Initialise, LecunNormalIsTruncatedAndHasTheVarianceOfItsFan) {
  const double factor = std::sqrt(1.0 / 768) / 0.87962566103423978;
  EXPECT_NEAR(factor, 0.04102244, 1e-8);
  Statistics s = of(values(tensor("kernel", kMany, kLecun)));
  EXPECT_NEAR(s.mean, 0, 0.01 * factor);
  EXPECT_NEAR(s.std, std::sqrt(1.0 / 768), std::sqrt(1.0 / 768) * 0.006);
  EXPECT_LT(s.most, 0.0820449);
  EXPECT_GT(s.least, -0.0820449);
  EXPECT_GT(s.most, 0.0820449 * 0.999) << "the whole interval is used";
  EXPECT_LT(s.least, -0.0820449 * 0.999);
  EXPECT_NEAR(s.kurtosis, 2.3655, 0.03)
      << "kurtosis of the normal truncated at two standard deviations";
}

TEST(Initialise, XavierUniformFillsItsInterval) {
  const double limit = std::sqrt(6.0 / 3840);
  EXPECT_NEAR(limit, 0.0395285, 1e-7);
  Statistics s = of(values(tensor("kernel", kMany, kXavier)));
  EXPECT_NEAR(s.mean, 0, 0.005 * limit);
  EXPECT_NEAR(s.std, limit / std::sqrt(3.0), 0.005 * limit);
  EXPECT_NEAR(s.kurtosis, 1.8, 0.01);
  EXPECT_LE(s.most, limit);
  EXPECT_GE(s.least, -limit);
  EXPECT_GT(s.most, limit * 0.9999);
  EXPECT_LT(s.least, -limit * 0.9999);
}

TEST(Initialise, UniformFillsItsInterval) {
  Statistics s = of(values(tensor("kernel", kMany, kUniform)));
  EXPECT_NEAR(s.mean, 0, 0.005 * 0.25);
  EXPECT_NEAR(s.std, 0.25 / std::sqrt(3.0), 0.005 * 0.25);
  EXPECT_LE(s.most, 0.25);
  EXPECT_GE(s.least, -0.25);
}

TEST(Initialise, UnitRowsHaveTheDirectionOfWhatIsDrawn) {
  Parameter unit = tensor("queue", 17 * 59, kUnitRows), drawn = tensor("queue", 17 * 59, kNormal);
  unit.shape = drawn.shape = {59, 17};
  const std::vector<float> u = values(unit), x = values(drawn);
  for (size_t row = 0; row < u.size(); row += 17) {
    double length = 0, along = 0, drawn_length = 0;
    for (size_t i = row; i < row + 17; ++i) {
      length += double(u[i]) * double(u[i]);
      along += double(u[i]) * double(x[i]);
      drawn_length += double(x[i]) * double(x[i]);
    }
    EXPECT_NEAR(length, 1, 1e-6);
    EXPECT_NEAR(along, std::sqrt(drawn_length), 1e-6);
  }
}

TEST(Initialise, NoSplitIntoRangesChangesABit) {
  for (const Init& init : {Init{}, kNormal, kLecun, kXavier, kUniform, kUnitRows}) {
    Parameter p = tensor("some/kernel", 1003, init);
    p.shape = {59, 17};
    std::vector<float> whole = values(p);
    for (int64_t parts : {2, 3, 7, 1003}) {
      std::vector<float> again(whole.size(), -7.0f);
      for (int64_t i = 0; i < parts; ++i) {
        int64_t begin = p.size * i / parts, end = p.size * (i + 1) / parts;
        shard::initial_values(p, 1, begin, end, again.data() + begin);
      }
      EXPECT_EQ(std::memcmp(whole.data(), again.data(), whole.size() * 4), 0) << parts << " parts";
    }
    float untouched = -7.0f;
    shard::initial_values(p, 1, 500, 500, &untouched);
    EXPECT_EQ(untouched, -7.0f) << "an empty range writes nothing";
  }
}

double correlation(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double(a[i]) * double(b[i]);
    aa += double(a[i]) * double(a[i]);
    bb += double(b[i]) * double(b[i]);
  }
  return ab / std::sqrt(aa * bb);
}

TEST(Initialise, TensorsAndSeedsAreIndependent) {
  constexpr int64_t n = 40000;
  const double limit = 4 / std::sqrt(double(n));
  for (const Init& init : {kNormal, kLecun, kXavier}) {
    std::vector<float> a = values(tensor("block_0/kernel", n, init), 1);
    EXPECT_EQ(a, values(tensor("block_0/kernel", n, init), 1));
    EXPECT_LT(std::abs(correlation(a, values(tensor("block_1/kernel", n, init), 1))), limit)
        << "path";
    EXPECT_LT(std::abs(correlation(a, values(tensor("block_0/kernel", n, init), 2))), limit)
        << "seed";
    std::vector<float> shifted(a.begin() + 1, a.end());
    shifted.push_back(a[0]);
    EXPECT_LT(std::abs(correlation(a, shifted)), limit) << "neighbouring elements";
  }
}

// Only the path matters, so that a tensor keeps its values when others are added or removed.
TEST(Initialise, ShapeAndPlaceDoNotMatter) {
  Parameter a = tensor("x/kernel", 24, kLecun), b = a;
  b.shape = {2, 3, 4};
  b.block = 7;
  b.unit = 3;
  b.offset = 160;
  EXPECT_EQ(values(a), values(b));
}

}  // namespace
