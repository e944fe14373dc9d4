// SPDX-License-Identifier: Apache-2.0
// Random numbers as pure functions: value = f(seed, stream name, draw index). Philox-4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). There is no state, so
// values do not depend on ranks, threads, order or time.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/elementary.hpp"

namespace base {

using Philox4 = std::array<uint32_t, 4>;

// Returns one block, after ten rounds.
constexpr Philox4 philox(Philox4 counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t{0xD2511F53u} * counter[0], b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ key0, uint32_t(b),
               uint32_t(a >> 32) ^ counter[3] ^ key1, uint32_t(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Hashes the name of a stream (FNV-1a, 64 bit).
constexpr uint64_t stream_id(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (char c : name) h = (h ^ uint8_t(c)) * 0x100000001b3ull;
  return h;
}

// A stream of draws, cheap to copy. `sub` returns an independent stream, for example of a step.
class Stream {
 public:
  constexpr Stream() = default;
  constexpr Stream(uint64_t seed, std::string_view name) : key_(mix(seed ^ mix(stream_id(name)))) {}
  constexpr Stream sub(uint64_t index) const {
    return Stream(mix(key_ + 0x9E3779B97F4A7C15ull * (index + 1)));
  }
  constexpr uint64_t key() const { return key_; }

  // Returns four 32-bit words. Draw n of the stream is word n % 4 of block n / 4.
  constexpr Philox4 block(uint64_t index) const {
    return philox({uint32_t(index), uint32_t(index >> 32), 0x5452u, 0x4149u}, uint32_t(key_),
                  uint32_t(key_ >> 32));
  }
  constexpr uint32_t bits(uint64_t index) const { return block(index / 4)[index % 4]; }
  constexpr uint64_t bits64(uint64_t index) const {
    Philox4 b = block(index);
    return uint64_t(b[1]) << 32 | b[0];
  }
  // Returns a uniform value in [0, 1) with 24 bits, exact in float.
  constexpr float uniform(uint64_t index) const { return float(bits(index) >> 8) * 0x1p-24f; }
  // Returns a uniform value in [0, 1) with 53 bits. It uses block `index`, so do not mix it with
  // uniform() on one stream.
  constexpr double uniform64(uint64_t index) const { return double(bits64(index) >> 11) * 0x1p-53; }
  // Returns a standard normal value (Box-Muller on block `index`).
  double normal(uint64_t index) const {
    Philox4 b = block(index);
    double u = (double(uint64_t(b[1]) << 21 ^ b[0] >> 11) + 0.5) * 0x1p-53;
    double v = double(uint64_t(b[3]) << 21 ^ b[2] >> 11) * 0x1p-53;
    return std::sqrt(-2 * base::math::log(u)) * base::math::cos(6.283185307179586476925 * v);
  }

 private:
  explicit constexpr Stream(uint64_t key) : key_(key) {}
  static constexpr uint64_t mix(uint64_t x) {  // splitmix64 finaliser
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
  }
  uint64_t key_ = 0;
};

}  // namespace base
