// SPDX-License-Identifier: Apache-2.0
#include "data/stream/order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "made_classes.hpp"
#include "support.hpp"

namespace data {
namespace {

std::vector<int64_t> epoch_of(const Order& order, int64_t epoch) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < order.size(); ++i) out.push_back(order.index(epoch * order.size() + i));
  return out;
}

TEST(Order, EverySampleOncePerEpoch) {
  for (int64_t size : {1, 2, 3, 7, 63, 64, 65, 1000, 3600, 82'783}) {
    Order order(Shuffle::exact, size, 5);
    for (int64_t epoch : {0, 1, 36'267}) {
      std::vector<int64_t> indices = epoch_of(order, epoch), all(static_cast<size_t>(size));
      std::iota(all.begin(), all.end(), 0);
      std::sort(indices.begin(), indices.end());
      EXPECT_EQ(indices, all) << size << " " << epoch;
    }
  }
}

TEST(Order, None) {
  Order order(Shuffle::none, 5, 1);
  EXPECT_EQ(order.index(0), 0);
  EXPECT_EQ(order.index(13), 3);
  EXPECT_EQ(order.epoch(13), 2);
  for (int64_t position = 0; position < 15; ++position) {
    EXPECT_EQ(order.epoch(position), position < 5 ? 0 : position < 10 ? 1 : 2);
    EXPECT_EQ(order.index(position), position % 5);
  }
}

TEST(Order, DependsOnSeedAndEpochOnly) {
  Order a(Shuffle::exact, 1000, 1), again(Shuffle::exact, 1000, 1), b(Shuffle::exact, 1000, 2);
  EXPECT_EQ(epoch_of(a, 3), epoch_of(again, 3));
  EXPECT_NE(epoch_of(a, 3), epoch_of(b, 3));
  EXPECT_NE(epoch_of(a, 3), epoch_of(a, 4));
}

// A changed order would give resumed runs other samples.
TEST(Order, FixedForever) {
  Order order(Shuffle::exact, 10, 0);
  EXPECT_EQ(epoch_of(order, 0), (std::vector<int64_t>{0, 8, 6, 4, 9, 5, 7, 2, 1, 3}));
}

// Positions and samples are independent, by chi-square of the 50 x 50 table over many epochs.
TEST(Order, PlacesAreUniform) {
  constexpr int64_t kSize = 50, kEpochs = 20'000;
  Order order(Shuffle::exact, kSize, 7);
  std::vector<double> hits(kSize * kSize);
  for (int64_t e = 0; e < kEpochs; ++e)
    for (int64_t i = 0; i < kSize; ++i) ++hits[size_t(i * kSize + order.index(e * kSize + i))];
  double expected = double(kEpochs) / kSize, chi = 0;
  for (double h : hits) chi += (h - expected) * (h - expected) / expected;
  double freedom = (kSize - 1.0) * (kSize - 1.0);  // rows and columns have fixed sums
  EXPECT_NEAR(chi, freedom, 5 * std::sqrt(2 * freedom));
}

// All 120 orders of five samples are equally frequent: permutations of tiny sets are not special,
// either.
TEST(Order, AllPermutationsOfFewSamples) {
  constexpr int64_t kEpochs = 24'000;
  Order order(Shuffle::exact, 5, 11);
  std::map<std::vector<int64_t>, double> hits;
  for (int64_t e = 0; e < kEpochs; ++e) ++hits[epoch_of(order, e)];
  ASSERT_EQ(hits.size(), 120u);
  double expected = kEpochs / 120.0, chi = 0;
  for (auto& [p, h] : hits) chi += (h - expected) * (h - expected) / expected;
  EXPECT_NEAR(chi, 119, 5 * std::sqrt(2 * 119.0));
}

// In a large set no sample drifts, neighbours do not stay neighbours, and few samples keep their
// position.
TEST(Order, LooksRandomInALargeSet) {
  constexpr int64_t kSize = 100'003;
  Order order(Shuffle::exact, kSize, 3);
  std::vector<int64_t> p = epoch_of(order, 0);
  double mean = (kSize - 1) / 2.0, product = 0, near = 0, fixed = 0, ascending = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    product += (double(i) - mean) * (double(p[size_t(i)]) - mean);
    fixed += p[size_t(i)] == i;
    if (i == 0) continue;
    near += std::abs(p[size_t(i)] - p[size_t(i - 1)]) <= 10;
    ascending += p[size_t(i)] > p[size_t(i - 1)];
  }
  double correlation = product / (double(kSize) * kSize * kSize / 12);
  EXPECT_LT(std::abs(correlation), 5 / std::sqrt(double(kSize)));
  EXPECT_LE(fixed, 8);        // Poisson, mean 1
  EXPECT_NEAR(near, 20, 25);  // Poisson, mean 20
  EXPECT_NEAR(ascending, kSize / 2.0, 5 * std::sqrt(kSize / 12.0));
}

TEST(Order, TenMillionSamplesComeOnceEach) {
  constexpr int64_t kSize = 10'000'000;
  for (Shuffle shuffle : {Shuffle::exact, Shuffle::blocks}) {
    const Order order(shuffle, kSize, 7, {512, 128});
    std::vector<bool> seen(size_t{kSize});
    int64_t twice = 0;
    for (int64_t i = 0; i < kSize; ++i) {
      auto place = seen[size_t(order.index(3 * kSize + i))];
      twice += place;
      place = true;
    }
    EXPECT_EQ(twice, 0);
  }
}

// ---- by class

using SharedClasses = std::shared_ptr<const Classes>;
SharedClasses uneven() {
  std::vector<uint32_t> classes;
  for (uint32_t i = 0; i < 1000; ++i) classes.push_back(i % 100 == 0 ? 0 : i % 12 == 1 ? 1 : 2);
  return std::make_shared<const Classes>(test::classes_of(classes));
}

TEST(OrderByClass, DrawsByThePowerOfFrequency) {
  const SharedClasses classes = uneven();
  constexpr int64_t kDraws = 30'000;
  for (double power : {0.0, 0.5, 1.0, 2.0}) {
    const Order order(classes, power, 3);
    EXPECT_EQ(order.size(), 1000);
    std::vector<double> hits(3), of_sample(1000);
    for (int64_t i = 0; i < kDraws; ++i) {
      const int64_t sample = order.index(i);
      ++hits[size_t(classes->of_sample(sample))];
      ++of_sample[size_t(sample)];
    }
    double sum = 0;
    for (int64_t n : classes->sizes()) sum += std::pow(double(n), 1 - power);
    for (size_t c = 0; c < 3; ++c) {
      const double p = std::pow(double(classes->sizes()[c]), 1 - power) / sum;
      EXPECT_NEAR(hits[c], kDraws * p, 5 * std::sqrt(kDraws * p)) << power << " " << c;
      // The samples of a class are alike, by chi-square.
      const double expected = hits[c] / double(classes->sizes()[c]),
                   freedom = double(classes->sizes()[c] - 1);
      double chi = 0;
      for (size_t i = 0; i < 1000; ++i)
        if (classes->of_sample(int64_t(i)) == c)
          chi += (of_sample[i] - expected) * (of_sample[i] - expected) / expected;
      EXPECT_NEAR(chi, freedom, 5 * std::sqrt(2 * freedom)) << power << " " << c;
    }
  }
}

TEST(OrderByClass, DependsOnSeedEpochAndNameOnly) {
  const SharedClasses classes = uneven();
  const Order a(classes, 1, 1), again(classes, 1, 1), b(classes, 1, 2), named(classes, 1, 1, "x");
  EXPECT_EQ(epoch_of(a, 3), epoch_of(again, 3));
  EXPECT_NE(epoch_of(a, 3), epoch_of(b, 3));
  EXPECT_NE(epoch_of(a, 3), epoch_of(a, 4));
  EXPECT_NE(epoch_of(a, 3), epoch_of(named, 3));
}

// The draws of running trainings depend on these positions.
TEST(OrderByClass, FixedForever) {
  const SharedClasses classes = uneven();
  std::vector<std::vector<int64_t>> samples(3);
  for (int64_t i = 0; i < 1000; ++i) samples[classes->of_sample(i)].push_back(i);
  const Order by_class(classes, 1, 4), strata(classes, Strata{2, 4}, 4);
  const base::Stream stream(4, "data.order");
  for (int64_t position : {0, 1, 2, 999, 1000, 1'000'000'007}) {
    const base::Stream draws = stream.sub(uint64_t(position / 1000)).sub(uint64_t(position % 1000));
    const auto c = size_t(draws.uniform64(0) * 3);  // at power 1 all classes are equally likely
    EXPECT_EQ(by_class.index(position),
              samples[c][size_t(draws.uniform64(1) * double(samples[c].size()))]);
    const int64_t batch = position / 4, slot = position % 4;  // of one group of two classes
    const base::Stream round = stream.sub(uint64_t(batch));
    const auto k = size_t(base::Permutation(3).at(slot % 2, round.sub(0)));
    const auto n = int64_t(samples[k].size());
    const base::Stream of_class = stream.sub(uint64_t(batch / (n / 2))).sub(k + 1);
    EXPECT_EQ(
        strata.index(position),
        samples[k][size_t(base::Permutation(n).at(batch % (n / 2) * 2 + slot / 2, of_class))]);
  }
}

// ---- stratified

TEST(OrderStratified, EachBatchHasEquallyManyOfItsClasses) {
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < 600; ++i) numbers.push_back(i % 60 == 0 ? 10 : i % 10);  // 10 is small
  const auto classes = std::make_shared<const Classes>(test::classes_of(numbers));
  const Order order(classes, Strata{4, 12}, 3);
  std::vector<int64_t> batches_of_class(11), hits(600);
  constexpr int64_t kBatches = 2000;
  for (int64_t batch = 0; batch < kBatches; ++batch) {
    std::map<uint32_t, int64_t> found;
    std::set<int64_t> samples;
    for (int64_t slot = 0; slot < 12; ++slot) {
      const int64_t sample = order.index(batch * 12 + slot);
      const uint32_t c = classes->of_sample(sample);
      // The classes are interleaved.
      if (slot < 4) {
        EXPECT_EQ(found.count(c), 0u);
      }
      ++found[c];
      ++hits[size_t(sample)];
      samples.insert(sample);
    }
    EXPECT_EQ(samples.size(), 12u) << "no sample twice";
    ASSERT_EQ(found.size(), 4u);
    for (const auto& [c, n] : found) {
      EXPECT_EQ(n, 3);
      ++batches_of_class[size_t(c)];
    }
  }
  // A round has two batches with 8 of the 11 classes, so a class is in 4 of 11 batches on average.
  for (int64_t n : batches_of_class) EXPECT_NEAR(double(n), kBatches * 4 / 11.0, 80);
  // All samples of a class come equally often, those of small classes more often.
  for (size_t i = 0; i < 600; ++i) {
    const uint32_t c = classes->of_sample(int64_t(i));
    const double expected =
        3.0 * double(batches_of_class[size_t(c)]) / double(classes->sizes()[size_t(c)]);
    EXPECT_NEAR(double(hits[i]), expected, 0.35 * expected + 6) << i;
  }
}

TEST(OrderStratified, IsAFunctionOfSeedAndPosition) {
  const SharedClasses classes = uneven();
  const Order a(classes, Strata{3, 6}, 1), again(classes, Strata{3, 6}, 1),
      b(classes, Strata{3, 6}, 2);
  EXPECT_EQ(a.size(), 1000);
  EXPECT_EQ(epoch_of(a, 3), epoch_of(again, 3));
  EXPECT_NE(epoch_of(a, 3), epoch_of(b, 3));
  EXPECT_NE(epoch_of(a, 3), epoch_of(a, 4));
}

TEST(OrderStratified, RefusesTooFewClassesAndSamples) {
  test::expect_error(base::Exit::config, {"train.classes_per_batch = 4", "3 classes"}, [] {
    Order(uneven(), Strata{4, 8}, 1);
  });
  // Class a has 10 samples.
  test::expect_error(base::Exit::data, {"class \"00\" has 10 samples", "needs 11 of each"}, [] {
    Order(uneven(), Strata{2, 22}, 1);
  });
  EXPECT_NO_THROW(Order(uneven(), Strata{2, 20}, 1));
}

// ---- blocks

TEST(OrderBlocks, EverySampleOncePerEpochForAnySize) {
  for (int64_t size : {1, 2, 7, 64, 65, 97, 1000, 1001, 4095})
    for (int64_t block : {1, 3, 8, 64, 5000})
      for (int64_t window : {1, 2, 5, 1000}) {
        Order order(Shuffle::blocks, size, 5, {block, window});
        std::vector<int64_t> all(static_cast<size_t>(size));
        std::iota(all.begin(), all.end(), 0);
        for (int64_t epoch : {0, 1, 2, 36'267}) {
          std::vector<int64_t> indices = epoch_of(order, epoch);
          std::sort(indices.begin(), indices.end());
          ASSERT_EQ(indices, all) << size << " " << block << " " << window << " " << epoch;
        }
      }
}

// A window reads `window` blocks and nothing else, each whole.
TEST(OrderBlocks, AWindowReadsWholeBlocks) {
  constexpr int64_t kSize = 10'007, kBlock = 32, kWindow = 5;  // the last block has 23 samples
  Order order(Shuffle::blocks, kSize, 3, {kBlock, kWindow});
  int64_t last_block = kSize / kBlock, total_mixed = 0, windows = 0;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> indices = epoch_of(order, epoch);
    for (size_t at = 0; at < indices.size(); ++windows) {
      // The window's length follows from the blocks in it.
      std::set<int64_t> blocks;
      size_t begin = at, length = 0;
      while (at < indices.size() && (blocks.size() < size_t(kWindow) || at - begin < length)) {
        blocks.insert(indices[at++] / kBlock);
        length =
            blocks.size() * kBlock - (blocks.contains(last_block) ? kBlock - kSize % kBlock : 0);
      }
      ASSERT_EQ(at - begin, length) << epoch << " " << begin;
      std::set<int64_t> seen(indices.begin() + int64_t(begin), indices.begin() + int64_t(at));
      ASSERT_EQ(seen.size(), length);
      for (size_t i = begin + 1; i < at; ++i)
        total_mixed += indices[i] / kBlock != indices[i - 1] / kBlock;
    }
  }
  EXPECT_EQ(windows, 3 * 63);
  // Samples of different blocks alternate: about 4 of 5 steps change the block.
  EXPECT_GT(total_mixed, 3 * kSize / 2);
}

TEST(OrderBlocks, BlocksAndSamplesAreShuffled) {
  Order order(Shuffle::blocks, 10'000, 1, {16, 8}), other(Shuffle::blocks, 10'000, 2, {16, 8});
  std::vector<int64_t> first = epoch_of(order, 0), second = epoch_of(order, 1);
  EXPECT_EQ(first, epoch_of(Order(Shuffle::blocks, 10'000, 1, {16, 8}), 0));
  EXPECT_NE(first, second);
  EXPECT_NE(first, epoch_of(other, 0));
  // Any block, also the short one, may be at any place.
  std::set<int64_t> places;
  Order ragged(Shuffle::blocks, 33, 1, {4, 1});
  for (int64_t epoch = 0; epoch < 200; ++epoch)
    for (int64_t i = 0; i < 33; ++i)
      if (ragged.index(epoch * 33 + i) == 32) places.insert(i);
  EXPECT_EQ(places.size(), 9u);
}

// One window over all samples is an exact shuffle: places are uniform.
TEST(OrderBlocks, PlacesAreUniformInOneWindow) {
  constexpr int64_t kSize = 50, kEpochs = 5000;
  Order order(Shuffle::blocks, kSize, 7, {4, 100});
  std::vector<double> hits(kSize * kSize);
  for (int64_t e = 0; e < kEpochs; ++e)
    for (int64_t i = 0; i < kSize; ++i) ++hits[size_t(i * kSize + order.index(e * kSize + i))];
  double expected = double(kEpochs) / kSize, chi = 0;
  for (double h : hits) chi += (h - expected) * (h - expected) / expected;
  double freedom = (kSize - 1.0) * (kSize - 1.0);
  EXPECT_NEAR(chi, freedom, 5 * std::sqrt(2 * freedom));
}

TEST(OrderBlocks, FixedForever) {
  Order order(Shuffle::blocks, 11, 0, {3, 2});
  EXPECT_EQ(epoch_of(order, 0), (std::vector<int64_t>{4, 8, 3, 7, 5, 6, 0, 9, 10, 2, 1}));
}

// Position 0 and the position of step 1,000,000 at batch 8192 cost equally much, in every mode.
TEST(Order, FarPositionsCostNothing) {
  for (Shuffle shuffle : {Shuffle::none, Shuffle::exact, Shuffle::blocks}) {
    Order order(shuffle, 400'000'003, 1);
    // Other programs on the machine disturb a try, but not each of them.
    double seconds[2] = {1e9, 1e9};
    for (int round = 0; round < 100 && (round < 3 || seconds[1] > 3 * seconds[0]); ++round)
      for (int far = 0; far < 2; ++far) {
        int64_t first = far ? 1'000'000 * int64_t{8192} : 0;
        auto begin = std::chrono::steady_clock::now();
        std::set<int64_t> seen;
        for (int64_t i = 0; i < 10'000; ++i) seen.insert(order.index(first + i));
        auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        seconds[far] = std::min(seconds[far], took);
        EXPECT_EQ(seen.size(), 10'000u);
        EXPECT_GE(*seen.begin(), 0);
        EXPECT_LT(*seen.rbegin(), 400'000'003);
      }
    EXPECT_LE(seconds[1], 3 * seconds[0]);
  }
}

}  // namespace
}  // namespace data
