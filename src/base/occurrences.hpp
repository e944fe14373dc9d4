// SPDX-License-Identifier: Apache-2.0
// Finds the k-th place of a number in a list of numbers, without lists of places. It is a wavelet
// matrix (F. Claude, G. Navarro, "The wavelet matrix", SPIRE 2012): for each bit of the numbers, a
// bit for each place.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/packed_numbers.hpp"
#include "base/ranked_bits.hpp"

namespace base {

class Occurrences {
 public:
  Occurrences() = default;
  // The numbers are below `count`.
  Occurrences(PackedNumbers numbers, uint32_t count);
  // Reads `size` numbers where they are: in memory that `owner` keeps, aligned to 8 bytes. Another
  // object wrote these bytes (bytes()).
  Occurrences(int64_t size, uint32_t count, std::string_view bytes,
              const std::shared_ptr<const void>& owner);

  int64_t size() const { return size_; }
  uint32_t operator[](int64_t place) const;
  // Returns the place where `number` occurs for the k-th time; k counts from 0.
  int64_t place(uint32_t number, int64_t k) const;

  // All that a reader needs besides size and count, and its length.
  std::string bytes() const;
  static int64_t byte_count(int64_t size, uint32_t count);

 private:
  struct Level {
    RankedBits bits;
    int64_t zeros = 0;
  };
  void find_begins(uint32_t count);

  int64_t size_ = 0;
  // A level sorts the numbers of the level before by one bit, the highest one first.
  std::vector<Level> levels_;
  std::vector<int64_t> begins_;  // where the equal numbers begin after the last level
};

}  // namespace base
