// SPDX-License-Identifier: Apache-2.0
#include "base/occurrences.hpp"

#include <bit>

#include "base/error.hpp"

namespace base {

Occurrences::Occurrences(PackedNumbers numbers, uint32_t count) {
  CHECK(count > 0, "numbers below 0");
  const int64_t size = numbers.size();
  for (int shift = std::bit_width(count - 1); shift-- > 0;) {
    auto bit = [&](int64_t i) { return numbers[i] >> shift & 1; };
    Level level{.bits = RankedBits(size, bit)};
    level.zeros = size - level.bits.ones();
    // The last level's order is not needed.
    if (shift > 0) {
      PackedNumbers sorted(size, count - 1);
      for (int64_t i = 0, zero = 0, one = level.zeros; i < size; ++i)
        sorted.set(bit(i) ? one++ : zero++, numbers[i]);
      numbers = std::move(sorted);
    }
    levels_.push_back(std::move(level));
  }
  for (uint32_t number = 0; number < count; ++number) {
    int64_t begin = 0;
    for (size_t l = 0; l < levels_.size(); ++l) {
      const int64_t ones = levels_[l].bits.ones_before(begin);
      begin = number >> (levels_.size() - 1 - l) & 1 ? levels_[l].zeros + ones : begin - ones;
    }
    begins_.push_back(begin);
  }
}

int64_t Occurrences::place(uint32_t number, int64_t k) const {
  int64_t place = begins_[number] + k;
  for (size_t l = levels_.size(); l-- > 0;) {
    const Level& level = levels_[l];
    place = number >> (levels_.size() - 1 - l) & 1 ? level.bits.one(place - level.zeros)
                                                   : level.bits.zero(place);
  }
  return place;
}

}  // namespace base
