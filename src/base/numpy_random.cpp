// SPDX-License-Identifier: Apache-2.0
#include "base/numpy_random.hpp"

#include <array>
#include <bit>

namespace base {
namespace {

// Turns words into less predictable ones. The constant changes with every word.
class Mixer {
 public:
  Mixer(uint32_t constant, uint32_t factor) : constant_(constant), factor_(factor) {}
  uint32_t operator()(uint32_t word) {
    word ^= constant_;
    constant_ *= factor_;
    word *= constant_;
    return word ^ word >> 16;
  }

 private:
  uint32_t constant_, factor_;
};

// Returns the first eight words that a seed sequence generates.
std::array<uint32_t, 8> seed_words(uint64_t seed) {
  std::array<uint32_t, 4> pool = {uint32_t(seed), uint32_t(seed >> 32), 0, 0};
  Mixer enter(0x43b0d7e5u, 0x931e8875u);
  for (uint32_t& word : pool) word = enter(word);
  for (size_t from = 0; from < pool.size(); ++from)
    for (size_t to = 0; to < pool.size(); ++to) {
      if (from == to) continue;
      const uint32_t mixed = 0xca01f9ddu * pool[to] - 0x4973f715u * enter(pool[from]);
      pool[to] = mixed ^ mixed >> 16;
    }
  Mixer leave(0x8b51f9ddu, 0x58f38dedu);
  std::array<uint32_t, 8> words{};
  for (size_t i = 0; i < words.size(); ++i) words[i] = leave(pool[i % pool.size()]);
  return words;
}

}  // namespace

NumpyRandom::NumpyRandom(uint64_t seed) {
  const std::array<uint32_t, 8> words = seed_words(seed);
  // The words form four 64-bit numbers, lower word first. Two numbers, upper first, form 128 bits.
  auto wide = [&](size_t at) {
    auto number = [&](size_t i) { return uint64_t(words[i + 1]) << 32 | words[i]; };
    return Wide(number(at)) << 64 | number(at + 2);
  };
  increment_ = wide(4) << 1 | 1;
  step();
  state_ += wide(0);
  step();
}

void NumpyRandom::step() {
  const Wide factor = Wide(0x2360ED051FC65DA4ull) << 64 | 0x4385DF649FCCF645ull;
  state_ = state_ * factor + increment_;
}

uint64_t NumpyRandom::bits64() {
  step();
  const uint64_t folded = uint64_t(state_ >> 64) ^ uint64_t(state_);
  const auto turn = unsigned(state_ >> 122);
  return folded >> turn | folded << (-turn & 63);
}

uint32_t NumpyRandom::bits32() {
  if (std::exchange(has_upper_half_, false)) return upper_half_;
  const uint64_t both = bits64();
  upper_half_ = uint32_t(both >> 32);
  has_upper_half_ = true;
  return uint32_t(both);
}

uint32_t NumpyRandom::bounded(uint32_t last) {
  if (last == 0) return 0;
  const uint32_t mask = UINT32_MAX >> std::countl_zero(last);
  for (;;)
    if (const uint32_t value = bits32() & mask; value <= last) return value;
}

}  // namespace base
