// SPDX-License-Identifier: Apache-2.0
// The fused multiply-add. The build forbids compilers to fuse products with sums (CMakeLists.txt),
// so a sum is fused only where this function says so, and bits do not depend on the compiler.
#pragma once

#include <type_traits>

namespace base {

// Returns a b + c, rounded once. It is a template because Clang 14 cannot compute it in advance,
// and refuses other constexpr functions that it can never compute so.
template <class T>
constexpr T fused(T a, T b, T c) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  if constexpr (std::is_same_v<T, float>)
    return __builtin_fmaf(a, b, c);
  else
    return __builtin_fma(a, b, c);
}

}  // namespace base
