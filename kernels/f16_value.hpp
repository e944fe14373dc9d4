// SPDX-License-Identifier: Apache-2.0
// Conversions between float and IEEE 754 binary16, one value at a time. They are integer code,
// because some compilers lack the type.
#pragma once

#include <bit>
#include <cstdint>

namespace kernels::loops {

// A binary16 as memory holds it.
struct F16 {
  uint16_t bits;
};

constexpr float to_float(F16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, exponent = (x.bits >> 10) & 31,
                 mantissa = x.bits & 0x3ff;
  if (exponent == 0)
    return std::bit_cast<float>(std::bit_cast<uint32_t>(float(mantissa) * 0x1p-24f) | sign);
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

// Rounds to the nearest, ties to even. Values from 65,520 on become infinite; NaN stays NaN.
constexpr F16 round_to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = u >> 16 & 0x8000, size = u & 0x7FFFFFFF;
  if (size > 0x7F800000) return {uint16_t(sign | 0x7E00)};
  if (size >= 0x477FF000) return {uint16_t(sign | 0x7C00)};
  // Below 2^-14 the values of binary16 are 2^-24 apart. Floats from 0.5 to 1 are too, so adding 0.5
  // rounds to them.
  if (size < 0x38800000)
    return {
        uint16_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3F000000))};
  return {uint16_t(sign | (size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13)};
}

}  // namespace kernels::loops
