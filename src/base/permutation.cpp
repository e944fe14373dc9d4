// SPDX-License-Identifier: Apache-2.0
#include "base/permutation.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace base {
namespace {

constexpr uint64_t kRounds = 8;
// A network of fewer than 64 points has too few distinct round functions to reach all permutations
// about equally often.
constexpr uint64_t kSmallestSide = 8;

uint64_t drawn(const Stream& stream, uint64_t digit, uint64_t round, uint64_t side) {
  return stream.bits64(digit * kRounds + round) % side;
}

// Permutations of [0, side^2), each the inverse of the other.
uint64_t forward(uint64_t value, uint64_t side, const Stream& stream) {
  uint64_t left = value / side, right = value % side;
  for (uint64_t round = 0; round < kRounds; ++round) {
    uint64_t next = (left + drawn(stream, right, round, side)) % side;
    left = right;
    right = next;
  }
  return left * side + right;
}

uint64_t backward(uint64_t value, uint64_t side, const Stream& stream) {
  uint64_t left = value / side, right = value % side;
  for (uint64_t round = kRounds; round-- > 0;) {
    uint64_t before = (right + side - drawn(stream, left, round, side)) % side;
    right = left;
    left = before;
  }
  return left * side + right;
}

}  // namespace

Permutation::Permutation(int64_t size) : size_(size) {
  CHECK(size > 0, "a permutation of {} things", size);
  side_ = uint64_t(std::sqrt(double(size)));
  while (side_ * side_ < uint64_t(size)) ++side_;
  side_ = std::max(side_, kSmallestSide);
}

int64_t Permutation::at(int64_t place, const Stream& stream) const {
  uint64_t value = uint64_t(place);
  do value = forward(value, side_, stream);
  while (value >= uint64_t(size_));
  return int64_t(value);
}

int64_t Permutation::place_of(int64_t value, const Stream& stream) const {
  uint64_t place = uint64_t(value);
  do place = backward(place, side_, stream);
  while (place >= uint64_t(size_));
  return int64_t(place);
}

TabulatedPermutation::TabulatedPermutation(const Permutation& order, const Stream& stream)
    : size_(uint64_t(order.size_)), side_(order.side_), draws_(size_t(kRounds * side_)) {
  CHECK(side_ <= kMostDigits, "a table for a permutation of {} things", size_);
  for (uint64_t round = 0; round < kRounds; ++round)
    for (uint64_t digit = 0; digit < side_; ++digit)
      draws_[size_t(round * side_ + digit)] = uint32_t(drawn(stream, digit, round, side_));
}

void TabulatedPermutation::step(std::span<uint32_t> left, std::span<uint32_t> right) const {
  const auto side = uint32_t(side_);
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint32_t* draws = draws_.data() + round * side_;
    for (size_t i = 0; i < left.size(); ++i) {
      const uint32_t digit = right[i], next = left[i] + draws[digit];
      left[i] = digit;
      right[i] = std::min(next, next - side);  // next - side is large where next < side
    }
  }
}

void TabulatedPermutation::values(int64_t first, std::span<int64_t> out) const {
  // A table of one round is used for so many values that it stays in a near cache.
  constexpr size_t kTogether = 1024;
  uint32_t left[kTogether], right[kTogether];
  for (size_t done = 0; done < out.size(); done += kTogether) {
    const size_t count = std::min(kTogether, out.size() - done);
    uint64_t high = (uint64_t(first) + done) / side_, low = (uint64_t(first) + done) % side_;
    for (size_t i = 0; i < count; ++i) {
      left[i] = uint32_t(high);
      right[i] = uint32_t(low);
      if (++low < side_) continue;
      low = 0;
      ++high;
    }
    step({left, count}, {right, count});
    for (size_t i = 0; i < count; ++i) {
      auto value = [&] { return left[i] * side_ + right[i]; };
      while (value() >= size_) step({left + i, 1}, {right + i, 1});
      out[done + i] = int64_t(value());
    }
  }
}

}  // namespace base
