// SPDX-License-Identifier: Apache-2.0
#include "base/ranked_bits.hpp"

#include <sys/mman.h>

#include <atomic>
#include <bit>

#include "base/error.hpp"
#include "base/narrow.hpp"

namespace base {

int64_t RankedBits::block_count(int64_t size) { return ceil_div(size, kBlock); }
int64_t RankedBits::word_count(int64_t size) { return block_count(size) * kWords; }
int64_t RankedBits::byte_count(int64_t size) {
  return (word_count(size) + block_count(size) + 1) * int64_t(sizeof(uint64_t));
}

namespace {

// Returns zeros. A large vector lies in huge pages if the kernel offers them: bits are set in any
// order, and the processor finds few pages faster.
std::vector<uint64_t> zeros(size_t count) {
  constexpr uintptr_t kPage = 4096, kMany = uintptr_t{8} << 20;
  std::vector<uint64_t> out;
  out.reserve(count);
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(out.data()) + kPage - 1) / kPage * kPage,
                  end = reinterpret_cast<uintptr_t>(out.data() + count);
  if (end >= begin + kMany)
    ::madvise(reinterpret_cast<void*>(begin), (end - begin) / kPage * kPage, MADV_HUGEPAGE);
  out.resize(count);
  return out;
}

}  // namespace

RankedBits::RankedBits(int64_t size)
    : size_(size), own_(zeros(size_t(byte_count(size)) / sizeof(uint64_t))) {
  look_at(own_.data());
}

RankedBits::RankedBits(int64_t size, std::string_view bytes, std::shared_ptr<const void> owner)
    : size_(size), owner_(std::move(owner)) {
  CHECK(int64_t(bytes.size()) == byte_count(size) && uintptr_t(bytes.data()) % 8 == 0);
  look_at(reinterpret_cast<const uint64_t*>(bytes.data()));
}

void RankedBits::look_at(const uint64_t* memory) {
  words_ = {memory, size_t(word_count(size_))};
  before_ = {memory + words_.size(), size_t(block_count(size_)) + 1};
}

std::string_view RankedBits::bytes() const {
  return {reinterpret_cast<const char*>(words_.data()), size_t(byte_count(size_))};
}

void RankedBits::set(int64_t i) {
  std::atomic_ref<uint64_t>(own_[size_t(i / 64)])
      .fetch_or(uint64_t{1} << (i % 64), std::memory_order_relaxed);
}

void RankedBits::set_all(std::span<const int64_t> bits) {
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < bits.size(); ++i) {
    if (i + kAhead < bits.size()) __builtin_prefetch(&own_[size_t(bits[i + kAhead] / 64)], 1);
    set(bits[i]);
  }
}

void RankedBits::flip_all() {
  for (int64_t w = 0; w < int64_t(words_.size()); ++w) {
    const int64_t rest = size_ - w * 64;
    own_[size_t(w)] ^= rest >= 64 ? ~uint64_t{0} : rest <= 0 ? 0 : (uint64_t{1} << rest) - 1;
  }
}

void RankedBits::count() {
  uint64_t ones = 0, *before = own_.data() + words_.size();
  for (size_t w = 0; w < words_.size(); ++w) {
    if (w % size_t(kWords) == 0) *before++ = ones;
    ones += uint64_t(std::popcount(words_[w]));
  }
  *before = ones;
}

int64_t RankedBits::ones_before(int64_t i) const {
  CHECK(i >= 0 && i <= size_, "bit {} of {}", i, size_);
  auto ones = int64_t(before_[size_t(i / kBlock)]);
  for (int64_t w = i / kBlock * kWords; w < i / 64; ++w) ones += std::popcount(words_[size_t(w)]);
  if (i % 64) ones += std::popcount(words_[size_t(i / 64)] << (64 - i % 64));
  return ones;
}

template <bool kSet>
int64_t RankedBits::find(int64_t k) const {
  CHECK(k >= 0 && k < (kSet ? ones() : size_ - ones()), "bit {} of {}", k, ones());
  // The last block with at most k such bits before it.
  int64_t low = 0, high = int64_t(before_.size()) - 1;
  auto before = [&](int64_t b) {
    const auto ones = int64_t(before_[size_t(b)]);
    return kSet ? ones : b * kBlock - ones;
  };
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (before(middle) <= k ? low : high) = middle;
  }
  k -= before(low);
  for (int64_t w = low * kWords;; ++w) {
    uint64_t bits = kSet ? words_[size_t(w)] : ~words_[size_t(w)];
    const int64_t here = std::popcount(bits);
    if (k >= here) {
      k -= here;
      continue;
    }
    for (; k > 0; --k) bits &= bits - 1;
    return w * 64 + std::countr_zero(bits);
  }
}

int64_t RankedBits::one(int64_t k) const { return find<true>(k); }
int64_t RankedBits::zero(int64_t k) const { return find<false>(k); }

}  // namespace base
