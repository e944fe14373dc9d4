// SPDX-License-Identifier: Apache-2.0
// Some of n numbers, kept as a bit for each number. Finds the k-th of them, and counts those before
// a number, without a list of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace base {

class RankedBits {
 public:
  explicit RankedBits(int64_t size = 0);
  RankedBits(const RankedBits&) = delete;
  RankedBits(RankedBits&&) = default;
  RankedBits& operator=(RankedBits&&) = default;
  // Bits bit(0), bit(1), ..., counted.
  template <class Bit>
  RankedBits(int64_t size, Bit bit) : RankedBits(size) {
    for (int64_t i = 0; i < size; ++i) own_[size_t(i / 64)] |= uint64_t{bit(i)} << (i % 64);
    count();
  }
  // Counted bits in the memory of `owner`, aligned to 8 bytes: what bytes() of others returned.
  RankedBits(int64_t size, std::string_view bytes, std::shared_ptr<const void> owner);

  // Any thread may call it, until count() is called.
  void set(int64_t i);
  // Sets many bits in any order. Their memory is asked for in advance.
  void set_all(std::span<const int64_t> bits);
  void flip_all();
  // Call it once, after the bits are set. The functions below need it.
  void count();

  int64_t size() const { return size_; }
  int64_t ones() const { return int64_t(before_.back()); }
  bool operator[](int64_t i) const { return words_[size_t(i / 64)] >> (i % 64) & 1; }
  // Returns the number of set bits before bit i <= size().
  int64_t ones_before(int64_t i) const;
  // Return the place of the k-th bit that is set, or clear; k counts from 0.
  int64_t one(int64_t k) const;
  int64_t zero(int64_t k) const;
  // Calls `each` with the places of all set bits, in order.
  template <class Each>
  void for_each(Each each) const {
    for (size_t w = 0; w < words_.size(); ++w)
      for (uint64_t bits = words_[w]; bits; bits &= bits - 1)
        each(int64_t(w) * 64 + __builtin_ctzll(bits));
  }
  // All that a reader needs, and its length for this many bits.
  std::string_view bytes() const;
  static int64_t byte_count(int64_t size);

 private:
  static constexpr int64_t kWords = 8, kBlock = 64 * kWords;  // a block is one cache line
  static int64_t word_count(int64_t size);
  static int64_t block_count(int64_t size);
  void look_at(const uint64_t* memory);
  template <bool kSet>
  int64_t find(int64_t k) const;

  int64_t size_ = 0;
  // Whole blocks of bits, clear beyond size_. Then the set bits before each block; at the end, all.
  std::vector<uint64_t> own_;
  std::shared_ptr<const void> owner_;
  std::span<const uint64_t> words_, before_;
};

}  // namespace base
