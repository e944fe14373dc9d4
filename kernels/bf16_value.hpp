// SPDX-License-Identifier: Apache-2.0
// Conversions between float and bfloat16, one value at a time.
#pragma once

#include <bit>
#include <cstdint>

namespace kernels::loops {

// A bfloat16 as memory holds it.
struct Bf16 {
  uint16_t bits;
};

constexpr float to_float(Bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }
constexpr float to_float(float x) { return x; }

// Rounds to the nearest, ties to even; NaN stays NaN.
constexpr Bf16 round_to_bf16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  uint32_t rounded = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
  return {uint16_t((u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded)};
}

template <class T>
constexpr T store_as(float x) {
  if constexpr (sizeof(T) == sizeof(Bf16))
    return round_to_bf16(x);
  else
    return x;
}

}  // namespace kernels::loops
