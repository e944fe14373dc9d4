// SPDX-License-Identifier: Apache-2.0
#include "base/occurrences.hpp"

#include <bit>

#include "base/error.hpp"

namespace base {

Occurrences::Occurrences(PackedNumbers numbers, uint32_t count) : size_(numbers.size()) {
  CHECK(count > 0, "numbers below 0");
  for (int shift = std::bit_width(count - 1); shift-- > 0;) {
    auto bit = [&](int64_t i) { return numbers[i] >> shift & 1; };
    Level level{.bits = RankedBits(size_, bit)};
    level.zeros = size_ - level.bits.ones();
    // The last level's order is not needed.
    if (shift > 0) {
      PackedNumbers sorted(size_, count - 1);
      for (int64_t i = 0, zero = 0, one = level.zeros; i < size_; ++i)
        sorted.set(bit(i) ? one++ : zero++, numbers[i]);
      numbers = std::move(sorted);
    }
    levels_.push_back(std::move(level));
  }
  find_begins(count);
}

Occurrences::Occurrences(int64_t size, uint32_t count, std::string_view bytes,
                         const std::shared_ptr<const void>& owner)
    : size_(size) {
  CHECK(count > 0 && int64_t(bytes.size()) == byte_count(size, count));
  const auto length = size_t(RankedBits::byte_count(size));
  for (; !bytes.empty(); bytes.remove_prefix(length)) {
    Level level{.bits = RankedBits(size, bytes.substr(0, length), owner)};
    level.zeros = size - level.bits.ones();
    levels_.push_back(std::move(level));
  }
  find_begins(count);
}

void Occurrences::find_begins(uint32_t count) {
  for (uint32_t number = 0; number < count; ++number) {
    int64_t begin = 0;
    for (size_t l = 0; l < levels_.size(); ++l) {
      const int64_t ones = levels_[l].bits.ones_before(begin);
      begin = number >> (levels_.size() - 1 - l) & 1 ? levels_[l].zeros + ones : begin - ones;
    }
    begins_.push_back(begin);
  }
}

uint32_t Occurrences::operator[](int64_t place) const {
  uint32_t number = 0;
  for (const Level& level : levels_) {
    const int64_t ones = level.bits.ones_before(place);
    const bool bit = level.bits[place];
    place = bit ? level.zeros + ones : place - ones;
    number = number << 1 | uint32_t(bit);
  }
  return number;
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

std::string Occurrences::bytes() const {
  std::string out;
  for (const Level& level : levels_) out += level.bits.bytes();
  return out;
}

int64_t Occurrences::byte_count(int64_t size, uint32_t count) {
  return RankedBits::byte_count(size) * std::bit_width(count - 1);
}

}  // namespace base
