// SPDX-License-Identifier: Apache-2.0
#include "base/permutation.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace {

// Values that are computed together are those that are computed alone, at all sizes of the digits.
TEST(Permutation, ManyValuesAreThoseOfEach) {
  const base::Stream stream(7, "many");
  for (int64_t size : {int64_t{1}, int64_t{5}, int64_t{63}, int64_t{64}, int64_t{65}, int64_t{1000},
                       int64_t{1'000'000'007}, int64_t{1} << 40, (int64_t{1} << 62) + 5}) {
    const base::Permutation order(size);
    for (int64_t count : {0, 1, 15, 16, 17, 500}) {
      const int64_t n = std::min(count, size), first = (size - n) / 3;
      std::vector<int64_t> together(static_cast<size_t>(n));
      order.values(first, together, stream);
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(together[size_t(i)], order.at(first + i, stream)) << size << " " << first + i;
        EXPECT_EQ(order.place_of(together[size_t(i)], stream), first + i);
      }
    }
  }
}

}  // namespace
