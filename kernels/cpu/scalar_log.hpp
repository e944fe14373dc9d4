// SPDX-License-Identifier: Apache-2.0
// Logarithms within the vector loops. The library's depend on its version and on the CPU; the own
// one has the same bits everywhere. vector_math.hpp explains how this file is compiled.
#pragma once

#include "base/own_log.hpp"
#include "kernels/cpu/vector_inline.hpp"

namespace kernels {
namespace {

enum class Log { library, own };

// The logarithm of a sum of floats, which is no denormal number of double.
template <Log kLog>
KERNELS_INLINE double log_of(double x) {
  if constexpr (kLog == Log::library) return __builtin_log(x);
  if (x > 0 && x < __builtin_inf()) return base::own_log(x);
  if (x == 0) return -__builtin_inf();
  return x < 0 ? __builtin_nan("") : x;
}

}  // namespace
}  // namespace kernels
