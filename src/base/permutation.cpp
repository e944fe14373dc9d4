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

}  // namespace base
