// SPDX-License-Identifier: Apache-2.0
// Tests compact sets and lists of numbers against plain ones.
#include "base/ranked_bits.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "base/occurrences.hpp"
#include "base/random.hpp"

namespace base {
namespace {

TEST(RankedBits, ManyAreSetAsOneIs) {
  const Stream draws(3, "many");
  for (size_t count : {0u, 1u, 15u, 16u, 17u, 300u}) {
    std::vector<int64_t> places;
    for (size_t i = 0; i < count; ++i) places.push_back(int64_t(draws.bits(i) % 5000));
    RankedBits one(5000), all(5000);
    for (int64_t place : places) one.set(place);
    all.set_all(places);
    one.count();
    all.count();
    EXPECT_EQ(one.bytes(), all.bytes()) << count;
  }
}

// Sets of many sizes, around the ends of words and blocks, from empty to full.
TEST(RankedBits, FindsAndCountsAsAListDoes) {
  const Stream draws(1, "bits");
  for (int64_t size : {1, 2, 63, 64, 65, 511, 512, 513, 1024, 5000})
    for (int share : {0, 1, 50, 99, 100}) {
      std::vector<bool> plain;
      for (int64_t i = 0; i < size; ++i)
        plain.push_back(int(draws.sub(uint64_t(size)).bits(uint64_t(i)) % 100) < share);
      RankedBits bits(size), other(size);
      for (int64_t i = 0; i < size; ++i) (plain[size_t(i)] ? bits : other).set(i);
      other.flip_all();
      const RankedBits made(size, [&](int64_t i) { return uint64_t(plain[size_t(i)]); });
      bits.count();
      other.count();
      std::vector<int64_t> ones, zeros, all;
      for (const RankedBits* b : {&std::as_const(bits), &std::as_const(other), &made}) {
        for (auto* list : {&ones, &zeros, &all}) list->clear();
        for (int64_t i = 0; i < size; ++i) {
          ASSERT_EQ(b->ones_before(i), int64_t(ones.size()));
          ASSERT_EQ((*b)[i], plain[size_t(i)]);
          (plain[size_t(i)] ? ones : zeros).push_back(i);
        }
        ASSERT_EQ(b->ones_before(size), int64_t(ones.size()));
        ASSERT_EQ(b->ones(), int64_t(ones.size()));
        for (size_t k = 0; k < ones.size(); ++k) ASSERT_EQ(b->one(int64_t(k)), ones[k]);
        for (size_t k = 0; k < zeros.size(); ++k) ASSERT_EQ(b->zero(int64_t(k)), zeros[k]);
        b->for_each([&](int64_t i) { all.push_back(i); });
        ASSERT_EQ(all, ones);
        EXPECT_THROW(b->one(int64_t(ones.size())), std::exception);
        EXPECT_THROW(b->zero(int64_t(zeros.size())), std::exception);
      }
    }
}

TEST(RankedBits, ThreadsSetBitsOfOneWord) {
  constexpr int64_t kSize = 100'000;
  RankedBits bits(kSize);
  {
    std::vector<std::jthread> threads;
    for (int64_t t = 0; t < 4; ++t)
      threads.emplace_back([&bits, t] {
        for (int64_t i = t; i < kSize; i += 4) bits.set(i);
      });
  }
  bits.count();
  EXPECT_EQ(bits.ones(), kSize);
}

TEST(PackedNumbers, TakeTheBytesThatTheyNeed) {
  PackedNumbers numbers;
  std::vector<uint32_t> plain;
  auto equal = [&] {
    if (numbers.size() != int64_t(plain.size())) return false;
    for (size_t i = 0; i < plain.size(); ++i)
      if (numbers[int64_t(i)] != plain[i]) return false;
    return true;
  };
  int64_t width = 1;
  for (uint32_t value : {0u, 255u, 7u, 256u, 65535u, 1u, 65536u, 3'000'000'000u, 2u}) {
    width = std::max<int64_t>(width, value < 256 ? 1 : value < 65536 ? 2 : 4);
    plain.push_back(value);
    numbers.push_back(value);
    EXPECT_TRUE(equal()) << value;
    EXPECT_EQ(numbers.bytes(), width * numbers.size());
  }
  numbers = PackedNumbers(3, 300);
  plain = {0, 0, 0};
  EXPECT_TRUE(equal());
  EXPECT_EQ(numbers.bytes(), 6);
  numbers.set(1, 70'000);
  plain[1] = 70'000;
  EXPECT_TRUE(equal());
}

TEST(Occurrences, FindsPlacesAsListsDo) {
  const Stream draws(2, "numbers");
  for (uint32_t count : {1u, 2u, 3u, 7u, 8u, 9u, 300u})
    for (int64_t size : {1, 10, 700, 3000}) {
      PackedNumbers numbers;
      std::vector<std::vector<int64_t>> places(count);
      for (int64_t i = 0; i < size; ++i) {
        // The last number never occurs, if there are others.
        const uint32_t n = draws.sub(count).bits(uint64_t(i)) % std::max(count - 1, 1u);
        numbers.push_back(n);
        places[n].push_back(i);
      }
      const Occurrences found(numbers, count);
      const auto bytes = std::make_shared<const std::string>(found.bytes());
      ASSERT_EQ(int64_t(bytes->size()), Occurrences::byte_count(size, count));
      const Occurrences mapped(size, count, *bytes, bytes);
      for (uint32_t n = 0; n < count; ++n)
        for (size_t k = 0; k < places[n].size(); ++k) {
          ASSERT_EQ(found.place(n, int64_t(k)), places[n][k]) << count << " " << size << " " << n;
          ASSERT_EQ(mapped.place(n, int64_t(k)), places[n][k]);
          ASSERT_EQ(mapped[places[n][k]], n);
        }
    }
}

}  // namespace
}  // namespace base
