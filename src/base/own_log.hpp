// SPDX-License-Identifier: Apache-2.0
// The own logarithm of elementary.hpp. The vector loops of ops compile this file for several
// instruction sets, so it includes no other and its functions have internal linkage.
#pragma once

#include <cstdint>

namespace base {
namespace {

// ln 2 in two parts. The first has 32 bits, so its product with an exponent is exact.
constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;

struct SplitNumber {
  double exponent, fraction;  // x = 2^exponent fraction, sqrt(1/2) <= fraction < sqrt(2)
};

// Splits a positive normal number.
static inline __attribute__((always_inline)) SplitNumber split_number(double x) {
  constexpr uint64_t kRootHalf = 0x3FE6A09E667F3BCDull;  // sqrt(1/2)
  const uint64_t bits = __builtin_bit_cast(uint64_t, x);
  const int64_t n = int64_t(bits - kRootHalf) >> 52;
  return {double(n), __builtin_bit_cast(double, bits - (uint64_t(n) << 52))};
}

// Returns the natural logarithm of a positive normal number, to about 1 unit in the last place.
//   x = 2^n (1 + f), s = f / (2 + f), log(1 + f) = 2 s (1 + r / 2), r = 2 (s^2 / 3 + s^4 / 5 + ...)
//   2 s = f - s f and s f = f^2 / 2 - s f^2 / 2, so f, which is exact, leads the sum.
// The terms of r that are left out are below 1e-18 of the result.
static inline __attribute__((always_inline)) double own_log(double x) {
  const SplitNumber parts = split_number(x);
  const double f = parts.fraction - 1, s = f / (parts.fraction + 1), z = s * s, half = 0.5 * f * f;
  double sum = 2.0 / 21;
  for (int i = 19; i >= 3; i -= 2) sum = __builtin_fma(sum, z, 2.0 / i);
  const double behind =
      half - __builtin_fma(s, __builtin_fma(z, sum, half), parts.exponent * kLn2Low);
  return __builtin_fma(parts.exponent, kLn2High, f - behind);
}

}  // namespace
}  // namespace base
