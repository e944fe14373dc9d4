// SPDX-License-Identifier: Apache-2.0
// Logarithms within the vector loops. The library's depend on its version and on the CPU; the own
// one has the same bits everywhere. vector_math.hpp explains how this file is compiled.
#pragma once

#include <cstdint>

#include "kernels/cpu/vector_inline.hpp"

namespace kernels {
namespace {

enum class Log { library, own };

// Returns the natural logarithm of a positive normal number to 2 units in the last place.
//   x = 2^n m with sqrt(1/2) <= m < sqrt(2), s = (m - 1) / (m + 1)
//   log(m) = 2 s (1 + s^2 / 3 + s^4 / 5 + ...); the terms left out are below 1e-18 of it.
KERNELS_INLINE double own_log(double x) {
  constexpr uint64_t kBelowRootHalf = 0x3FE6A09E667F3BCDull;  // sqrt(1/2)
  const uint64_t above = __builtin_bit_cast(uint64_t, x) - kBelowRootHalf;
  const int64_t n = int64_t(above) >> 52;
  const double m = __builtin_bit_cast(double,
                                      __builtin_bit_cast(uint64_t, x) - (uint64_t(n) << 52)),
               s = (m - 1) / (m + 1), z = s * s;
  double sum = 1.0 / 21;
  for (int i = 19; i >= 3; i -= 2) sum = __builtin_fma(sum, z, 1.0 / i);
  const double of_m = __builtin_fma(2 * s * z, sum, 2 * s);
  // ln 2 in two parts; the first has 32 bits, so its product with n is exact.
  return __builtin_fma(double(n), 6.93147180369123816490e-01,
                       __builtin_fma(double(n), 1.90821492927058770002e-10, of_m));
}

// The logarithm of a sum of floats, which is no denormal number of double.
template <Log kLog>
KERNELS_INLINE double log_of(double x) {
  if constexpr (kLog == Log::library) return __builtin_log(x);
  if (x > 0 && x < __builtin_inf()) return own_log(x);
  if (x == 0) return -__builtin_inf();
  return x < 0 ? __builtin_nan("") : x;
}

}  // namespace
}  // namespace kernels
