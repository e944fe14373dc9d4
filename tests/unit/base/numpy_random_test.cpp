// SPDX-License-Identifier: Apache-2.0
// Compares random numbers with those that NumPy 1.24.2 gave for the same seeds.
#include "base/numpy_random.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace {

using Numbers = std::vector<int64_t>;

Numbers permutation(base::NumpyRandom& random, size_t count) {
  Numbers values(count);
  std::iota(values.begin(), values.end(), 0);
  random.shuffle(values);
  return values;
}

struct Recorded {
  uint64_t seed;
  std::vector<uint64_t> raw;  // default_rng(seed).bit_generator.random_raw(3)
  // default_rng(seed): permutation(10), then permutation(7), permutation(1) and permutation(12)
  Numbers ten, seven, twelve;
};

const Recorded kRecorded[] = {{0,
                               {0xa30febcfd9c2825f, 0x4510bdf882d9d721, 0xa7d3da94ecde8b8},
                               {4, 6, 2, 7, 3, 5, 9, 0, 8, 1},
                               {3, 2, 0, 6, 4, 5, 1},
                               {5, 4, 10, 11, 8, 2, 1, 6, 7, 9, 3, 0}},
                              {1,
                               {0x8306bdf37922e4ff, 0xf35196bbc152a866, 0x24e7a4f608ec18cd},
                               {8, 4, 7, 0, 1, 2, 5, 9, 6, 3},
                               {1, 5, 6, 0, 2, 3, 4},
                               {8, 3, 1, 6, 9, 7, 0, 10, 4, 5, 11, 2}},
                              {2,
                               {0x42f90348d66b58c1, 0x4c69ea631bfb7164, 0xd071191f69efb11e},
                               {2, 0, 7, 6, 9, 5, 3, 4, 8, 1},
                               {6, 1, 4, 3, 2, 5, 0},
                               {3, 10, 8, 7, 5, 0, 4, 11, 6, 1, 2, 9}},
                              {12345,
                               {0x3a32b18db2ffc19d, 0x51171315c9e4c4de, 0xcc2024823444efd9},
                               {4, 8, 1, 3, 7, 9, 6, 0, 2, 5},
                               {0, 2, 6, 3, 1, 5, 4},
                               {0, 9, 8, 6, 3, 7, 2, 4, 11, 1, 5, 10}},
                              {(uint64_t{1} << 40) + 7,  // a seed of two words
                               {0xd46e9e2034de21aa, 0x415badc99c087675, 0x275ed40f045acb84},
                               {6, 2, 8, 7, 9, 3, 4, 1, 5, 0},
                               {4, 0, 5, 3, 1, 6, 2},
                               {5, 8, 1, 6, 4, 0, 11, 9, 10, 3, 7, 2}}};

TEST(NumpyRandom, BitsAreThoseOfTheGenerator) {
  for (const Recorded& r : kRecorded) {
    base::NumpyRandom random(r.seed);
    for (uint64_t raw : r.raw) EXPECT_EQ(random.bits64(), raw) << "seed " << r.seed;
    base::NumpyRandom halves(r.seed);
    for (uint64_t raw : r.raw) {
      EXPECT_EQ(halves.bits32(), uint32_t(raw));
      EXPECT_EQ(halves.bits32(), uint32_t(raw >> 32));
    }
  }
}

TEST(NumpyRandom, PermutationsFollowEachOther) {
  for (const Recorded& r : kRecorded) {
    SCOPED_TRACE(r.seed);
    base::NumpyRandom random(r.seed);
    EXPECT_EQ(permutation(random, 10), r.ten);
    EXPECT_EQ(permutation(random, 7), r.seven);
    EXPECT_EQ(permutation(random, 1), Numbers{0}) << "draws nothing";
    EXPECT_EQ(permutation(random, 0), Numbers{}) << "draws nothing";
    EXPECT_EQ(permutation(random, 12), r.twelve);
  }
}

// The sum of position times value is recorded for all 100,000 elements.
TEST(NumpyRandom, ALongPermutationIsTheRecordedOne) {
  base::NumpyRandom random(5);
  const Numbers values = permutation(random, 100000);
  EXPECT_EQ(Numbers(values.begin(), values.begin() + 5),
            (Numbers{96277, 83891, 71835, 28131, 54819}));
  EXPECT_EQ(Numbers(values.end() - 5, values.end()), (Numbers{44480, 79141, 39413, 44014, 58792}));
  int64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += int64_t(i) * values[i];
  EXPECT_EQ(sum, 249813457963938);
}

}  // namespace
