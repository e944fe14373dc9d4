// SPDX-License-Identifier: Apache-2.0
#include "base/permutation.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

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

#ifdef __AVX2__

using Four = uint64_t __attribute__((vector_size(32)));
constexpr int kFours = 4, kLanes = 4 * kFours;
constexpr uint64_t kLow = 0xffffffff;

// a = the product of the low halves of a and b
inline void multiply_low(Four& a, const Four& b) {
  a = Four(_mm256_mul_epu32(__m256i(a), __m256i(b)));
}

// Replaces numbers i by stream.bits64(i), with the rounds of philox() for several i at once.
void draw(uint64_t (&numbers)[kLanes], const Stream& stream) {
  Four c0[kFours], c1[kFours], c2[kFours], c3[kFours];  // only the low halves count
  for (int i = 0; i < kFours; ++i) {
    std::memcpy(&c0[i], numbers + 4 * i, sizeof c0[i]);
    c1[i] = c0[i] >> 32;
    c2[i] = Four{} + uint64_t{0x5452};
    c3[i] = Four{} + uint64_t{0x4149};
  }
  uint32_t key0 = uint32_t(stream.key()), key1 = uint32_t(stream.key() >> 32);
#pragma GCC unroll 1
  for (int round = 0; round < 10; ++round) {
    const Four k0 = Four{} + uint64_t{key0}, k1 = Four{} + uint64_t{key1};
#pragma GCC unroll 8
    for (int i = 0; i < kFours; ++i) {
      Four a = Four{} + uint64_t{0xD2511F53}, b = Four{} + uint64_t{0xCD9E8D57};
      multiply_low(a, c0[i]);
      multiply_low(b, c2[i]);
      c0[i] = (b >> 32) ^ c1[i] ^ k0;
      c1[i] = b;
      c2[i] = (a >> 32) ^ c3[i] ^ k1;
      c3[i] = a;
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  for (int i = 0; i < kFours; ++i) {
    const Four bits = c1[i] << 32 | (c0[i] & kLow);
    std::memcpy(numbers + 4 * i, &bits, sizeof bits);
  }
}

// Replaces values v by forward(v).
void forward_all(uint64_t (&values)[kLanes], uint64_t side, const Stream& stream) {
  const uint64_t inverse = ~uint64_t{0} / side;
  uint64_t left[kLanes], right[kLanes], drawn[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    left[i] = values[i] / side;
    right[i] = values[i] % side;
  }
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kLanes; ++i) drawn[i] = right[i] * kRounds + round;
    draw(drawn, stream);
    for (int i = 0; i < kLanes; ++i) {
      // The quotient by the inverse is at most two too small.
      const auto product = static_cast<unsigned __int128>(drawn[i]) * inverse;
      uint64_t rest = drawn[i] - uint64_t(product >> 64) * side;
      rest = rest >= side ? rest - side : rest;
      rest = rest >= side ? rest - side : rest;
      const uint64_t next = left[i] + rest;
      left[i] = right[i];
      right[i] = next >= side ? next - side : next;
    }
  }
  for (int i = 0; i < kLanes; ++i) values[i] = left[i] * side + right[i];
}

#endif

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

void Permutation::values(int64_t first, std::span<int64_t> out, const Stream& stream) const {
  size_t done = 0;
#ifdef __AVX2__
  uint64_t lanes[kLanes];
  for (; done + size_t(kLanes) <= out.size(); done += size_t(kLanes)) {
    for (int i = 0; i < kLanes; ++i) lanes[i] = uint64_t(first) + done + uint64_t(i);
    forward_all(lanes, side_, stream);
    for (int i = 0; i < kLanes; ++i) {
      uint64_t value = lanes[i];
      while (value >= uint64_t(size_)) value = forward(value, side_, stream);
      out[done + size_t(i)] = int64_t(value);
    }
  }
#endif
  for (; done < out.size(); ++done) out[done] = at(first + int64_t(done), stream);
}

int64_t Permutation::place_of(int64_t value, const Stream& stream) const {
  uint64_t place = uint64_t(value);
  do place = backward(place, side_, stream);
  while (place >= uint64_t(size_));
  return int64_t(place);
}

}  // namespace base
