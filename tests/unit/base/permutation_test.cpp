// SPDX-License-Identifier: Apache-2.0
#include "base/permutation.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace {

// Values from a table are those that are computed alone, at all sizes of the digits.
TEST(Permutation, ValuesOfATableAreThoseOfEach) {
  const base::Stream stream(7, "many");
  for (int64_t size : {int64_t{1}, int64_t{5}, int64_t{63}, int64_t{64}, int64_t{65}, int64_t{1000},
                       int64_t{1'000'000'007}, int64_t{1} << 40}) {
    const base::Permutation order(size);
    const base::TabulatedPermutation table(order, stream);
    for (int64_t count : {0, 1, 15, 500, 1024, 2500}) {
      const int64_t n = std::min(count, size), first = (size - n) / 3;
      std::vector<int64_t> together(static_cast<size_t>(n));
      table.values(first, together);
      for (int64_t i = 0; i < n; ++i)
        ASSERT_EQ(together[size_t(i)], order.at(first + i, stream)) << size << " " << first + i;
    }
  }
}

TEST(Permutation, KnowsThePlaceOfEachValue) {
  const base::Stream stream(7, "many");
  for (int64_t size : {int64_t{1}, int64_t{65}, int64_t{1'000'000'007}, (int64_t{1} << 62) + 5}) {
    const base::Permutation order(size);
    for (int64_t i = 0; i < std::min<int64_t>(size, 500); ++i)
      EXPECT_EQ(order.place_of(order.at(i, stream), stream), i) << size;
  }
}

}  // namespace
