// SPDX-License-Identifier: Apache-2.0
// A pseudo-random permutation of [0, size) that can be evaluated at any point in constant time and
// memory. It is a Feistel network over pairs of digits, with Philox as the round function. The
// network is applied until its result is inside the set (J. Black, P. Rogaway, "Ciphers with
// arbitrary finite domains", CT-RSA 2002).
#pragma once

#include <cstdint>
#include <span>

#include "base/random.hpp"

namespace base {

class Permutation {
 public:
  Permutation() = default;
  explicit Permutation(int64_t size);  // size >= 1

  int64_t size() const { return size_; }
  // Returns the value at `place` in the permutation that `stream` draws.
  int64_t at(int64_t place, const Stream& stream) const;
  // Writes the values at places [first, first + out.size()), several at once: with AVX2 in a
  // third of the time.
  void values(int64_t first, std::span<int64_t> out, const Stream& stream) const;
  // Returns the place of `value`: place_of(at(p, s), s) == p.
  int64_t place_of(int64_t value, const Stream& stream) const;

 private:
  int64_t size_ = 1;
  uint64_t side_ = 1;
};

}  // namespace base
