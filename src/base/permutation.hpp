// SPDX-License-Identifier: Apache-2.0
// A pseudo-random permutation of [0, size) that can be evaluated at any point in constant time and
// memory. It is a Feistel network over pairs of digits, with Philox as the round function. The
// network is applied until its result is inside the set (J. Black, P. Rogaway, "Ciphers with
// arbitrary finite domains", CT-RSA 2002).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.hpp"

namespace base {

class Permutation {
 public:
  Permutation() = default;
  explicit Permutation(int64_t size);  // size >= 1

  int64_t size() const { return size_; }
  // Returns the value at `place` in the permutation that `stream` draws.
  int64_t at(int64_t place, const Stream& stream) const;
  // Returns the place of `value`: place_of(at(p, s), s) == p.
  int64_t place_of(int64_t value, const Stream& stream) const;

 private:
  int64_t size_ = 1;
  uint64_t side_ = 1;
  friend class TabulatedPermutation;
};

// A permutation with all draws of its network in a table of 8 sqrt(size) numbers. A value takes
// nanoseconds instead of 200, so this is for callers that need a large part of all values.
class TabulatedPermutation {
 public:
  static constexpr uint64_t kMostDigits = uint64_t{1} << 24;  // 2^48 things: a table of 512 MiB
  TabulatedPermutation(const Permutation& order, const Stream& stream);
  // Writes order.at(first, stream), order.at(first + 1, stream), ...
  void values(int64_t first, std::span<int64_t> out) const;

 private:
  // Takes digits of values through the network.
  void step(std::span<uint32_t> left, std::span<uint32_t> right) const;
  uint64_t size_, side_;
  std::vector<uint32_t> draws_;  // [round][digit]
};

}  // namespace base
