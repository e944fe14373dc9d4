// SPDX-License-Identifier: Apache-2.0
#include "data/sources/synthetic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "support.hpp"

namespace data {
namespace {

SyntheticOptions small() {
  SyntheticOptions o;
  o.examples = 3000;
  o.image_size = 17;
  o.seq_len = 24;
  o.vocab_size = 50;
  return o;
}

TEST(Synthetic, IsAFunctionOfSeedAndIndex) {
  auto a = small().open({}), b = small().open({});
  SyntheticOptions other = small();
  other.seed = 1;
  auto c = other.open({});
  EXPECT_EQ(a->size(), 3000);
  EXPECT_EQ(a->key(7), "synthetic:7");
  auto image = [](const Source& s, int64_t i) {
    Sample sample = s.read(i);
    const Array& x = std::get<Array>(sample.at("image"));
    return std::vector<float>(x.f32(), x.f32() + x.count());
  };
  EXPECT_EQ(image(*a, 7), image(*b, 7));
  EXPECT_NE(image(*a, 7), image(*a, 8));
  EXPECT_NE(image(*a, 7), image(*c, 7));
  Sample sample = a->read(3);
  for (auto& [field, known] : small().spec()) EXPECT_EQ(mismatch(known, sample.at(field)), "");
}

TEST(Synthetic, NoiseIsNormalAndClipped) {
  auto source = small().open({});
  double n = 0, sum = 0, squares = 0, inside = 0, clipped = 0, neighbours = 0;
  for (int64_t i = 0; i < 500; ++i) {
    Sample sample = source->read(i);
    const Array& x = std::get<Array>(sample.at("image"));
    for (int64_t k = 0; k < x.count(); ++k) {
      float v = x.f32()[k];
      ASSERT_LE(std::abs(v), 1.0f);
      ++n;
      sum += v;
      squares += double(v) * v;
      inside += std::abs(v) < 0.5;
      clipped += std::abs(v) == 1.0f;
      if (k) neighbours += double(v) * x.f32()[k - 1];
    }
  }
  double slack = 5 / std::sqrt(n);
  EXPECT_NEAR(sum / n, 0, 0.5 * slack);
  EXPECT_NEAR(inside / n, 0.682689, slack);   // one deviation of N(0, 0.5)
  EXPECT_NEAR(clipped / n, 0.045500, slack);  // beyond two
  EXPECT_NEAR(squares / n, 0.230083, slack);  // variance of the clipped normal, (0.5 * 0.959358)^2
  EXPECT_NEAR(neighbours / n, 0, slack);
}

TEST(Synthetic, CaptionsHaveTheLengthsOfTheBenchmark) {
  for (auto [length, low, high] : {std::tuple{64, 6, 18}, {24, 4, 11}, {63, 4, 11}}) {
    SyntheticOptions o = small();
    o.seq_len = length;
    o.image_size = 1;
    auto source = o.open({});
    std::vector<int> lengths(size_t(length) + 1);
    std::vector<double> words(50);
    double total = 0;
    for (int64_t i = 0; i < o.examples; ++i) {
      Sample sample = source->read(i);
      const int32_t* x = std::get<Array>(sample.at("labels")).i32();
      int n = 0;
      while (x[n] != 1) {
        ASSERT_GE(x[n], 2);
        ASSERT_LT(x[n], 50);
        ++words[size_t(x[n++])];
        ++total;
      }
      for (int k = n + 1; k < length; ++k) ASSERT_EQ(x[k], 0);
      ++lengths[size_t(n)];
    }
    for (int n = 0; n <= length; ++n) {
      double expected = n < low || n > high ? 0 : double(o.examples) / (high - low + 1);
      EXPECT_NEAR(lengths[size_t(n)], expected, 5 * std::sqrt(expected)) << n;
    }
    for (size_t w = 2; w < 50; ++w)
      EXPECT_NEAR(words[w], total / 48, 5 * std::sqrt(total / 48)) << w;
  }
}

TEST(Synthetic, ShortSequences) {
  SyntheticOptions o = small();
  o.seq_len = 2;
  o.vocab_size = 3;
  auto source = o.open({});
  for (int64_t i = 0; i < 20; ++i) {
    Sample sample = source->read(i);
    const int32_t* x = std::get<Array>(sample.at("labels")).i32();
    EXPECT_EQ(x[0], 2);
    EXPECT_EQ(x[1], 1);
  }
}

TEST(Synthetic, ClassesAreInTurn) {
  SyntheticOptions o = small();
  const uint64_t without = o.open({})->fingerprint();
  const Sample plain = o.open({})->read(8);
  EXPECT_EQ(plain.count("label"), 0u);
  o.classes = 3;
  const auto source = o.open({});
  EXPECT_NE(source->fingerprint(), without);
  for (int64_t i = 0; i < 7; ++i) {
    const Sample sample = source->read(i);
    for (auto& [field, known] : o.spec()) EXPECT_EQ(mismatch(known, sample.at(field)), "");
    EXPECT_EQ(*std::get<Array>(sample.at("label")).i32(), i % 3);
    EXPECT_EQ(*std::get<Array>(source->field(i, "label")).i32(), i % 3);
  }
  // Classes alone change neither image nor caption.
  const Sample sample = source->read(8);
  const Array &a = std::get<Array>(plain.at("image")), &b = std::get<Array>(sample.at("image"));
  EXPECT_TRUE(std::equal(a.f32(), a.f32() + a.count(), b.f32()));
  o.pattern = Pattern::constant;
  const Sample grey = o.open({})->read(8);
  const Array& x = std::get<Array>(grey.at("image"));
  EXPECT_TRUE(std::all_of(x.f32(), x.f32() + x.count(), [](float v) { return v == 0; }));
}

// Least-squares scores that are linear in the pixels name the class of each image.
TEST(Synthetic, SeparableImagesShowTheirClass) {
  SyntheticOptions o = small();
  o.classes = 10;
  o.pattern = Pattern::separable;
  const auto source = o.open({});
  const int64_t pixels = 17 * 17 * 3;
  std::vector<std::vector<double>> means(10, std::vector<double>(size_t(pixels)));
  for (int64_t i = 0; i < 500; ++i) {
    const Sample sample = source->read(i);
    const float* x = std::get<Array>(sample.at("image")).f32();
    for (int64_t k = 0; k < pixels; ++k) means[size_t(i % 10)][size_t(k)] += double(x[k]) / 50;
  }
  std::set<std::vector<int32_t>> captions;
  for (int64_t i = 500; i < 1000; ++i) {
    const Sample sample = source->read(i);
    const float* x = std::get<Array>(sample.at("image")).f32();
    std::vector<double> scores(10);
    for (size_t c = 0; c < 10; ++c)
      for (int64_t k = 0; k < pixels; ++k) {
        const double m = means[c][size_t(k)];
        scores[c] += m * (double(x[k]) - m / 2);
      }
    EXPECT_EQ(std::max_element(scores.begin(), scores.end()) - scores.begin(), i % 10);
    const int32_t* text = std::get<Array>(sample.at("labels")).i32();
    captions.emplace(text, text + 24);
  }
  EXPECT_EQ(captions.size(), 10u) << "one caption for each class";
}

}  // namespace
}  // namespace data
