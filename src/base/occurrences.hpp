// SPDX-License-Identifier: Apache-2.0
// Finds the k-th place of a number in a list of numbers, without lists of places. It is a wavelet
// matrix (F. Claude, G. Navarro, "The wavelet matrix", SPIRE 2012): for each bit of the numbers, a
// bit for each place.
#pragma once

#include <cstdint>
#include <vector>

#include "base/packed_numbers.hpp"
#include "base/ranked_bits.hpp"

namespace base {

class Occurrences {
 public:
  Occurrences() = default;
  // The numbers are below `count`.
  Occurrences(PackedNumbers numbers, uint32_t count);
  // Returns the place where `number` occurs for the k-th time; k counts from 0.
  int64_t place(uint32_t number, int64_t k) const;

 private:
  struct Level {
    RankedBits bits;
    int64_t zeros = 0;
  };
  // A level sorts the numbers of the level before by one bit, the highest one first.
  std::vector<Level> levels_;
  std::vector<int64_t> begins_;  // where the equal numbers begin after the last level
};

}  // namespace base
